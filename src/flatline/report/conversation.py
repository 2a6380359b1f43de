"""A rollout as turns: who said what, which tools were called, which documents came back.

Where the trace knows who wrote every token, that decides. Otherwise the text is cut at the marks of
the known chat templates, which is for reading only: a model can write such a mark itself. All of it
is untrusted, and every cut is linear in the text.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from flatline.rollout.record import Author
from flatline.rollout.toolcalls import parse_hermes
from flatline.tasks.base import ToolCall
from flatline.text import shortened

LONGEST = 20_000
"""Characters shown of one block."""
ONE_LINE = 100
"""Characters of arguments that are shown without line breaks."""
_TURN = re.compile(
    r"<\|im_start\|>(\w{1,20})\n|<\|start_header_id\|>(\w{1,20})<\|end_header_id\|>\n\n"
)
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|begin_of_text|>")
_RESPONSE = ("<tool_response>", "</tool_response>")
_DOCUMENT = re.compile(r"^Document ID: (.{1,80})$", re.MULTILINE)
_TAGS = {
    "think": "thinking",
    "tool_call": "call",
    "answer": "answer",
    "cite": "citation",
}
_TAG = re.compile(r"<(think|tool_call|answer|cite)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a turn that is shown as one thing."""

    kind: str
    """text, thinking, call, bad-call, answer, citation or document."""
    text: str
    """What was written."""
    title: str = ""
    """Name of the tool or id of the document."""
    marks: tuple[str, ...] = ()
    """What is worth knowing about it, in a few words each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side said."""

    role: str
    """system, user, assistant, tool, or another that the template names."""
    blocks: list[Block] = field(default_factory=list)
    """In order."""


Stretch = tuple[Author | None, str]
"""Who wrote a stretch of the completion, and its text; None where that is unknown."""


def turns_of(prompt: str, completion: Iterable[Stretch], gold: str | None) -> list[Turn]:
    """The whole conversation."""
    said = _split(prompt, first="prompt")
    for author, text in completion:
        if author is None:
            said += _split(text, first="assistant")
        elif author is Author.MODEL:
            said.append(("assistant", _without_ends(text)))
        elif author is Author.TOOL:
            # Some engines count what the template puts around an observation as part of it.
            said.append(("tool", _without_ends(_TURN.sub("", text))))
    cited = _cited(said)
    blocks = {"tool": lambda text: _tool_blocks(text, gold, cited), "assistant": _blocks}
    return [
        Turn(role=role, blocks=blocks.get(role, _text)(text)) for role, text in said if text.strip()
    ]


def _split(text: str, *, first: str) -> list[tuple[str, str]]:
    """Role and text of every turn that a chat template marked."""
    found = list(_TURN.finditer(text))
    heads = [(first, text[: found[0].start()] if found else text)]
    ends = [*(one.start() for one in found[1:]), len(text)]
    heads += [
        (one[1] or one[2], text[one.end() : end]) for one, end in zip(found, ends, strict=False)
    ]
    said = [(role, _without_ends(spoken)) for role, spoken in heads]
    return [pair for role, spoken in said for pair in _tool_apart(role, spoken)]


def _tool_apart(role: str, text: str) -> list[tuple[str, str]]:
    """Hermes templates put what a tool said, and at times what follows it, into one turn."""
    opening, closing = _RESPONSE
    if role != "user" or not text.lstrip().startswith(opening):
        return [(role, text)]
    said, _, after = text.rpartition(closing)
    return [("tool", said or text), ("assistant", _without_ends(after) if said else "")]


def _without_ends(text: str) -> str:
    for mark in _ENDS:
        text = text.replace(mark, "")
    return text.strip("\n")


def _blocks(text: str) -> list[Block]:
    """A turn cut at the tags that it closes; an unclosed tag is text like any other."""
    blocks: list[Block] = []
    at, unclosed = 0, set[str]()
    for opened in _TAG.finditer(text):
        tag = opened[1]
        if opened.start() < at or tag in unclosed:
            continue
        end = text.find(f"</{tag}>", opened.end())
        if end < 0:
            unclosed.add(tag)  # nor will a later one be closed: looking once keeps this linear
            continue
        blocks += _text(text[at : opened.start()])
        at = end + len(tag) + 3
        inside = text[opened.end() : end]
        blocks.append(_call(text[opened.start() : at]) if tag == "tool_call" else _tag(tag, inside))
    return blocks + _text(text[at:])


def _text(text: str) -> list[Block]:
    shown = shortened(text.strip("\n"), limit=LONGEST)
    return [Block(kind="text", text=shown)] if shown.strip() else []


def _tag(tag: str, inside: str) -> Block:
    return Block(kind=_TAGS[tag], title=_TAGS[tag], text=shortened(inside.strip(), limit=LONGEST))


def _call(text: str) -> Block:
    calls = parse_hermes(text)
    if len(calls) == 1 and isinstance(calls[0], ToolCall):
        return Block(kind="call", title=calls[0].name, text=_arguments(calls[0]))
    reason = getattr(calls[0], "reason", "") if calls else ""
    return Block(
        kind="bad-call",
        title="not a tool call",
        text=shortened(text, limit=LONGEST),
        marks=(reason,) if reason else (),
    )


def _arguments(call: ToolCall) -> str:
    """In one line where they fit."""
    short = json.dumps(call.arguments, ensure_ascii=False)
    long = json.dumps(call.arguments, ensure_ascii=False, indent=1)
    return shortened(short if len(short) <= ONE_LINE else long, limit=LONGEST)


def _tool_blocks(text: str, gold: str | None, cited: set[str]) -> list[Block]:
    """What a tool brought back, document by document where it is documents."""
    for mark in _RESPONSE:
        text = text.replace(mark, "")
    found = list(_DOCUMENT.finditer(text))
    if not found:
        return _text(text)
    ends = [*(one.start() for one in found[1:]), len(text)]
    blocks = _text(text[: found[0].start()])
    for one, end in zip(found, ends, strict=True):
        body = text[one.end() : end].strip("\n")
        blocks.append(_document(one[1].strip(), body, gold, cited))
    return blocks


def _document(name: str, body: str, gold: str | None, cited: set[str]) -> Block:
    marks = ["has the gold answer"] if gold and gold.lower() in body.lower() else []
    marks += ["cited"] if name in cited else []
    return Block(
        kind="document",
        title=f"document {name}",
        text=shortened(body, limit=LONGEST),
        marks=tuple(marks),
    )


def _cited(said: list[tuple[str, str]]) -> set[str]:
    """Ids that the last turn of the model names as its sources."""
    last = next((text for role, text in reversed(said) if role == "assistant" and text), "")
    _, opened, rest = last.rpartition("<cite>")
    inside, closed, _ = rest.partition("</cite>")
    return {one.strip() for one in inside.split(",")} if opened and closed else set()
