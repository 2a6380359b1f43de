"""Chat templates, token by token: prompts, what follows a tool call, where a turn ends.

A rollout is never rendered again. Its tokens are the prompt, then what the model sampled, then what
the template puts between the model's end-of-turn token and its next turn, and so on. `ChatFormat`
gives the first and the third, and proves at construction that this concatenation is what the
template itself would render. A template that rewrites earlier turns is refused: a model trained on
our tokens would later be served other ones.

Text from outside may spell a control token, such as `<|im_end|>` in a document that a tool found.
Encoding the whole message at once would turn it into that token, and the document could end the
turn and speak as the user. Encoding each content apart would prevent it, but tokens also merge
across the border of content and template (`.` and the newline after it), and a model would see
splits it never met in training. So the message is encoded whole; wherever a control token comes out
inside the content, the text is cut in the middle of its spelling and the pieces are encoded apart.
Ordinary text gets exactly the tokens of the template's own rendering, hostile text spells the same
bytes in plain tokens. (A tokenizer that normalises Unicode still does so.)
"""

import json
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from flatline.errors import ModelError
from flatline.rollout.record import Author
from flatline.rollout.toolcalls import Call, Parser, parse_hermes, parse_llama
from flatline.tasks.base import Message, Tool, ToolCall

HERMES, JSON = "hermes", "json"
"""Names of flatline's own templates: ChatML with Hermes tool calls, or with calls in plain JSON."""
TRAINING = "_training"
"""Ending of the names of TRL's templates that never rewrite an earlier turn."""

_PARSERS: tuple[Parser, ...] = (parse_hermes, parse_llama)
_QUESTION = "Which river is longer?"
_THOUGHT = "<think>\nI should look.\n</think>\n\n"
_NAME, _KEY, _VALUE = "flatline_probe", "flatline_key", "flatline_value"
_PROBE_CALL = ToolCall(name=_NAME, arguments={_KEY: _VALUE})
_PROBE = 'Mixed "quotes" \\ <b>&amp;\'\n\tand ünïcode 😀 end.'


class ChatFormat:
    """How one tokenizer writes conversations with one set of tools."""

    def __init__(
        self,
        tokenizer: Any,
        tools: Sequence[Tool],
        *,
        template: str | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                f"There is only a slow tokenizer in {_name(tokenizer)}: it cannot say which text a "
                "token covers.\n"
                "flatline needs that to know who wrote a token.\n"
                "Save it with its tokenizer.json (a fast tokenizer) and load that."
            )
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        self.notice: str | None = None
        """What the user should be told once, if anything."""
        self._schemas = [tool.schema() for tool in tools] or None
        added = tokenizer.added_tokens_decoder
        self._added: dict[str, int] = {str(token.content): id for id, token in added.items()}
        self._special = {id for id, token in added.items() if token.special}
        self.template = template or tokenizer.chat_template or ""
        """Text of the Jinja template in use."""
        self._settle_on_a_template(given=template is not None)
        self._control = self._special | {
            id for text, id in self._added.items() if text.strip() and text in self.template
        }
        self._frames: dict[tuple[str, ...], str] = {}
        self._prompt_frame = self._render([_user()], generate=True)
        if self.tools:
            _check_prefixes(self)
        (self._end, self._last_end), self.eos_ids = self._ends_of_turn(eos_ids)
        self._parser = self._find_parser() if self.tools else None
        self._write = self._find_content_writer() if self.tools else str
        if self.tools:
            self._check_concatenation()

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """Tokens of the conversation so far and the opening of the model's turn."""
        messages = [{**message, "content": _clean(message.get("content"))} for message in messages]
        hostile = {}
        for i, message in enumerate(messages):
            if message["role"] != "system" and self._spells_special(message["content"]):
                mark = f"flatline_message_{i}_"
                written = self._write if message["role"] == "tool" else str
                hostile[mark] = written(message["content"])
                messages[i] = {**message, "content": mark}
        text, spans = _fill(self._render(messages, generate=True), hostile)
        return self._encode_guarded(text, spans, self._special)[0] if spans else self._encode(text)

    def suffix(
        self, observations: Sequence[str], calls: Sequence[Call]
    ) -> tuple[list[int], list[Author]]:
        """Tokens between the end of the model's turn and its next one, and who wrote each."""
        known = {tool.name for tool in self.tools}
        names = tuple(
            call.name if isinstance(call, ToolCall) and call.name in known else self.tools[0].name
            for call in calls
        )
        contents = {
            _mark(i): self._write(_clean(observation)) for i, observation in enumerate(observations)
        }
        text, spans = _fill(self._end + self._frame(names), contents)
        ids, covers = self._encode_guarded(text, spans, self._control)
        authors = [Author.TOOL if cover else Author.TEMPLATE for cover in covers]
        return ids[1:], authors[1:]

    def call_text(self, call: ToolCall) -> str:
        """A turn that makes this call and says nothing else, as the template writes it."""
        text = self._render([_user(), _assistant(content="", call=call)], generate=False)
        return text[len(self._prompt_frame) : text.rfind(self._end)]

    def written_tokens(self) -> dict[str, int]:
        """Tokens of their own that the model must write: those of a call, and ends of turns."""
        call = self.call_text(_PROBE_CALL) if self.tools else ""
        ends = (self._end, self._last_end)
        return {text: id for text, id in self._added.items() if text in call or text in ends}

    def turn_ids(self, text: str, *, last: bool) -> list[int]:
        """Tokens of a turn that a model wrote and ended; the last one of an episode calls no tool.

        What the text spells cannot end the turn: only the token at its end does.
        """
        text = _clean(text)
        ids, _ = self._encode_guarded(text, [(0, len(text))], self._special)
        return [*ids, self._added[self._last_end if last else self._end]]

    def parse(self, text: str) -> list[Call]:
        """The tool calls of a turn, readable or not; none means the turn is an answer."""
        return self._parser(text) if self._parser else []

    def _render(self, messages: list[Message], *, generate: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tools=self._schemas,
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=generate,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ModelError(
                f"The chat template of {_name(self.tokenizer)} cannot render this conversation: "
                f"{error}\nPass another one, e.g. `--chat-template {HERMES}`."
            ) from error
        return str(text)

    def _encode(self, text: str) -> list[int]:
        # The template writes the BOS token itself where there is one.
        encoded = self.tokenizer(text, add_special_tokens=False, verbose=False)
        return list(encoded["input_ids"])

    def _encode_guarded(
        self, text: str, spans: Sequence[tuple[int, int]], guarded: set[int]
    ) -> tuple[list[int], list[bool]]:
        """Tokens of the text, none of `guarded` inside the spans, and which touch a span."""
        cuts = {0, len(text)}
        while True:
            ids, starts, ends = self._encode_pieces(text, sorted(cuts))
            covers = _covering(starts, ends, spans)
            caught = [i for i, id in enumerate(ids) if covers[i] and id in guarded]
            new = {self._middle(text, starts[i], ends[i], ids[i]) for i in caught} - cuts
            if not new:
                return ids, covers
            cuts |= new

    def _encode_pieces(
        self, text: str, cuts: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]]:
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        encoded = self.tokenizer(
            pieces, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for start, piece, offsets in zip(
            cuts, encoded["input_ids"], encoded["offset_mapping"], strict=False
        ):
            reached = start
            for id, (a, b) in zip(piece, offsets, strict=True):
                # Many tokenizers leave white space out of the offsets: it belongs to what follows.
                starts.append(start + a if id in self._control else min(reached, start + a))
                reached = max(reached, start + b)
                ends.append(max(start + b, starts[-1]))
            ids += piece
        return ids, starts, ends

    def _middle(self, text: str, start: int, end: int, id: int) -> int:
        """Where to cut so that text[start:end] no longer spells the token."""
        spelling = self.tokenizer.convert_ids_to_tokens(id)
        found = text.find(spelling, start, end)
        return found + 1 if found >= 0 and len(spelling) > 1 else (start + end) // 2

    def _spells_special(self, text: Any) -> bool:
        spellings = (token for token, id in self._added.items() if id in self._special)
        return isinstance(text, str) and any(spelling in text for spelling in spellings)

    def _settle_on_a_template(self, *, given: bool) -> None:
        """Fall back to our own template where the tokenizer's is missing or knows no tools."""
        if self.template and (not self.tools or _shows_tools(self)):
            return
        lack = "no chat template" if not self.template else "a chat template without tools"
        chatml = {"<|im_start|>", "<|im_end|>"} <= set(self._added)
        if given or not chatml:
            raise ModelError(
                f"There is {lack} in {_name(self.tokenizer)}.\n"
                "The model would never see its tools or what they found.\n"
                "Pass a template that renders tools: `--chat-template FILE.jinja`, or the name of "
                f"one that TRL ships, e.g. `--chat-template llama3_1`; `{HERMES}` needs the tokens "
                "<|im_start|> and <|im_end|>."
            )
        self.template = load_chat_template(HERMES)
        self.notice = (
            f"There is {lack} in {_name(self.tokenizer)}; using flatline's own `{HERMES}` "
            "(ChatML with Hermes tool calls). The model was not trained on this way of calling "
            "tools. Pass --chat-template to choose another."
        )

    def _ends_of_turn(self, given: Iterable[int]) -> tuple[tuple[str, str], frozenset[int]]:
        """Texts of the tokens that end a turn with and without a call; the ids that end any."""
        last = self._end_after([_user(), _assistant(content=_VALUE)])
        calling = last
        if self.tools:
            calling = self._end_after([_user(), _assistant(content="", call=_PROBE_CALL)])
        ids = {self._added[calling], self._added[last], *given}
        if self.tokenizer.eos_token_id is not None:
            ids.add(self.tokenizer.eos_token_id)
        return (calling, last), frozenset(ids)

    def _end_after(self, messages: list[Message]) -> str:
        text = self._render(messages, generate=False)
        tail = text[text.rfind(_VALUE) + len(_VALUE) :]
        last = max((text for text in self._added if text.strip()), key=tail.rfind, default="")
        if not last or last not in tail:
            raise ModelError(
                f"The chat template of {_name(self.tokenizer)} ends a turn with {tail!r}, which is "
                "not a single token.\nWhere a turn ends could not be seen in its text.\n"
                f"Pass another one, e.g. `--chat-template {HERMES}`."
            )
        return last

    def _find_parser(self) -> Parser:
        """The parser that reads back a call as the template writes it."""
        turn = self.call_text(_PROBE_CALL)
        for parser in _PARSERS:
            if parser(turn) == [_PROBE_CALL]:
                return parser
        raise ModelError(
            f"The chat template of {_name(self.tokenizer)} writes tool calls as {turn!r}.\n"
            "flatline reads Hermes calls (<tool_call> around JSON) and Llama 3 calls (JSON).\n"
            f"Pass a template that writes one of these, e.g. `--chat-template {HERMES}`."
        )

    def _find_content_writer(self) -> Callable[[str], str]:
        """How the template writes a tool's text: as it is, or as a JSON string (Llama 3.1)."""
        name = self.tools[0].name
        text = self._render(_round([_PROBE], [name]), generate=True)
        frame = self._end + self._frame((name,))
        for write in (str, _inside_json):
            if text.endswith(_fill(frame, {_mark(0): write(_PROBE)})[0]):
                return write
        raise ModelError(
            f"The chat template of {_name(self.tokenizer)} rewrites what tools return.\n"
            "The model would read something else than the tool said.\n"
            f"Pass a template that does not, e.g. `--chat-template {HERMES}`."
        )

    def _frame(self, names: tuple[str, ...]) -> str:
        """What comes between two turns of the model, with marks for the tools' texts."""
        if names not in self._frames:
            marks = [_mark(i) for i in range(len(names))]
            text = self._render(_round(marks, names), generate=True)
            before = text[: text.find(marks[0])]
            self._frames[names] = text[before.rfind(self._end) + len(self._end) :]
        return self._frames[names]

    def _check_concatenation(self) -> None:
        """What we append to a turn is what the template would have rendered."""
        name = self.tools[0].name
        text = self._render(_round([_PROBE, _PROBE], [name, name]), generate=True)
        end = text.find(self._end, text.rfind(_VALUE)) + len(self._end)
        call = ToolCall(name=name, arguments={})
        ours = self._encode(text[:end]) + self.suffix([_PROBE, _PROBE], [call, call])[0]
        if ours != self._encode(text):
            raise ModelError(
                f"Tokens merge across the end of a turn ({self._end}) in {_name(self.tokenizer)}.\n"
                "Tokens that were sampled would change when the next message is appended.\n"
                f"Pass another template, e.g. `--chat-template {HERMES}`."
            )


def load_chat_template(name_or_path: str) -> str:
    """Text of a template: `hermes`, a name that TRL ships such as `qwen3_training`, or a file."""
    if name_or_path in (HERMES, JSON):
        return files("flatline.rollout").joinpath(f"{name_or_path}.jinja").read_text("utf-8")
    shipped = _shipped_templates()
    if name_or_path in shipped:
        return shipped[name_or_path].read_text(encoding="utf-8")
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path.read_text(encoding="utf-8")
    near = [name for name in shipped if name.startswith(name_or_path[:4])]
    raise ModelError(
        f"There is no chat template {name_or_path!r}: no such file, and TRL ships none so named."
        f"\nTry `--chat-template {HERMES}`, a file, or one of: {', '.join(near or shipped)}."
    )


class _Divergence(NamedTuple):
    earlier: str
    later: str


def _check_prefixes(chat: ChatFormat) -> None:
    """Refuse a template that renders earlier turns differently once later ones exist."""
    for thought in ("", _THOUGHT):
        found = _divergence(chat, thought)
        if found:
            raise ModelError(
                f"The chat template of {_name(chat.tokenizer)} rewrites earlier turns: after a "
                f"tool's answer, {found.earlier!r} becomes {found.later!r}.\n"
                "The model would be trained on tokens that it never meets when it is served.\n"
                f"Pass a template that keeps them: `--chat-template {_better_template(chat)}`."
            )


def _divergence(chat: ChatFormat, thought: str) -> _Divergence | None:
    """Where appending a message changes what stood before, in a two-call conversation."""
    messages = [_user()]
    earlier = chat._render(messages, generate=True)
    calling = _assistant(content=thought, call=_PROBE_CALL)
    for message in (
        calling,
        _tool(_VALUE),
        calling,
        _tool(_VALUE),
        _assistant(content=thought + "x"),
    ):
        messages.append(message)
        later = chat._render(messages, generate=message["role"] == "tool")
        if not later.startswith(earlier):
            same = next(i for i, (a, b) in enumerate(zip(earlier, later, strict=False)) if a != b)
            near = slice(max(0, same - 20), same + 40)
            return _Divergence(earlier[near], later[near])
        earlier = later
    return None


def _better_template(chat: ChatFormat) -> str:
    """The name of a template that keeps earlier turns and fits this tokenizer."""
    shipped = _shipped_templates()
    for name, path in shipped.items():
        if name + TRAINING in shipped and path.read_text("utf-8").strip() == chat.template.strip():
            return name + TRAINING
    if "<|im_start|>" in chat.template:
        return f"qwen3{TRAINING}" if "reasoning_content" in chat.template else HERMES
    return "FILE.jinja"


def _shipped_templates() -> dict[str, Path]:
    """Templates of the installed TRL by name; found without importing it, which takes seconds."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent / "chat_templates"
    return {path.stem: path for path in sorted(folder.glob("*.jinja"))}


def _shows_tools(chat: ChatFormat) -> bool:
    """Whether tools, calls and observations all reach the page."""
    try:
        text = chat._render(_round([_mark(0)], [_NAME]), generate=True)
    except ModelError:
        return False
    wanted = [_NAME, _KEY, _VALUE, _mark(0), *(tool.name for tool in chat.tools)]
    return all(word in text for word in wanted)


def _user() -> Message:
    return {"role": "user", "content": _QUESTION}


def _assistant(*, content: str, call: ToolCall | None = None) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if call is not None:
        function = {"name": call.name, "arguments": dict(call.arguments)}
        message["tool_calls"] = [{"type": "function", "id": "flatline0", "function": function}]
    return message


def _tool(content: str, name: str = _NAME) -> Message:
    return {"role": "tool", "name": name, "tool_call_id": "flatline0", "content": content}


def _round(contents: Sequence[str], names: Sequence[str]) -> list[Message]:
    """A question, a turn with a call, and what came back."""
    # One call stands for all: only what follows the turn is read off, and Llama 3.1 takes no more.
    answers = [_tool(content, name) for content, name in zip(contents, names, strict=True)]
    return [_user(), _assistant(content="", call=_PROBE_CALL), *answers]


def _mark(i: int) -> str:
    return f"flatline_observation_{i}_"


def _fill(text: str, contents: dict[str, str]) -> tuple[str, list[tuple[int, int]]]:
    """The text with its marks replaced, and where each content came to stand."""
    places = sorted((at, mark) for mark in contents for at in _occurrences(text, mark))
    pieces: list[str] = []
    spans = []
    read, length = 0, 0
    for at, mark in places:
        pieces += [text[read:at], contents[mark]]
        start = length + at - read
        length = start + len(contents[mark])
        spans.append((start, length))
        read = at + len(mark)
    return "".join([*pieces, text[read:]]), spans


def _occurrences(text: str, part: str) -> list[int]:
    found, at = [], text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def _covering(
    starts: Sequence[int], ends: Sequence[int], spans: Sequence[tuple[int, int]]
) -> list[bool]:
    """Which tokens overlap a span. Tokens and spans are in order, so one sweep is enough."""
    covers = []
    at = 0
    for a, b in zip(starts, ends, strict=True):
        while at < len(spans) and spans[at][1] <= a:
            at += 1
        covers.append(at < len(spans) and spans[at][0] < b)
    return covers


def _inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _clean(text: Any) -> Any:
    """Text that can be encoded: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text


def _name(tokenizer: Any) -> str:
    return getattr(tokenizer, "name_or_path", "") or "the tokenizer"
