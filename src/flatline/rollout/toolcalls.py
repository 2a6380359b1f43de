"""Reads tool calls out of what a model wrote. JSON only, never evaluated, linear in hostile text.

Two formats are known: Hermes (`<tool_call>` tags around a JSON object: Qwen2.5, Qwen3 and the lab
policy) and Llama 3 (a JSON object as the whole message). Whatever was meant as a call but cannot be
read becomes a `BadToolCall` whose reason tells the model what to write instead.

Thinking is not acting: a call inside a closed `<think>` block is a plan and is ignored, as Qwen3's
own servers do. A call inside a `<think>` that is never closed would leave the model waiting for an
answer that nobody owes it, so that one is reported.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from flatline.tasks.base import BadToolCall, ToolCall

Call = ToolCall | BadToolCall
Parser = Callable[[str], list[Call]]

MAX_CALLS = 32
"""Calls read from one turn; the rest gets one complaint. Bounds the work on hostile text."""
QUOTED = 200
"""Characters of a bad call that are kept."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_PYTHON_TAG = "<|python_tag|>"
_LLAMA_CALL = re.compile(r'\{\s*"name"\s*:')
_SPACE = re.compile(r"\s*")


def parse_hermes(text: str) -> list[Call]:
    """Every `<tool_call>` object of a turn, in order."""
    spoken, unfinished = _without_thinking(text)
    calls: list[Call] = []
    at = 0
    while (start := spoken.find(_OPEN, at)) >= 0:
        if len(calls) == MAX_CALLS:
            reason = f"only the first {MAX_CALLS} tool calls of a turn are read. Make fewer."
            return [*calls, _bad(spoken[start:], reason)]
        call, at = _hermes_call(spoken, start)
        calls.append(call)
    if not calls and _CLOSE in spoken:
        reason = f"{_CLOSE} closes a tool call that was never opened. Start it with {_OPEN}."
        calls.append(_bad(spoken, reason))
    if _OPEN in unfinished:
        reason = f"the tool call is inside {_THINK}. Write {_THOUGHT} before calling a tool."
        calls.append(_bad(unfinished, reason))
    return calls


def parse_llama(text: str) -> list[Call]:
    """The one call that is the whole message, if it is one."""
    spoken, unfinished = _without_thinking(text)
    spoken = spoken.strip()
    tagged = spoken.startswith(_PYTHON_TAG)
    spoken = spoken.removeprefix(_PYTHON_TAG).lstrip()
    mentioned = _LLAMA_CALL.search(spoken)
    if not (tagged or mentioned or (spoken.startswith("{") and '"name"' in spoken)):
        if not _LLAMA_CALL.search(unfinished):
            return []
        reason = f"the tool call is inside {_THINK}. Write {_THOUGHT} before calling a tool."
        return [_bad(unfinished, reason)]
    try:
        value, end = _decode(spoken, 0)
    except ValueError as error:
        if mentioned and mentioned.start() > 0 and not tagged:
            reason = (
                "a tool call must be the whole message. Write the JSON object and nothing else."
            )
        else:
            reason = f"the tool call is not valid JSON: {error}."
        return [_bad(spoken, reason)]
    if end < len(spoken):
        reason = "a tool call must be the whole message, one call at a time. Drop what follows it."
        return [_bad(spoken, reason)]
    return [_call_from(value, spoken, keys=("parameters", "arguments"))]


def _hermes_call(text: str, start: int) -> tuple[Call, int]:
    """The call that opens at `start`, and where to read on."""
    body = _skip_space(text, start + len(_OPEN))
    # The object is decoded before its closing tag is looked for: an argument may contain the tag.
    try:
        value, end = _decode(text, body)
    except ValueError as error:
        close = text.find(_CLOSE, body)
        if close < 0:
            return _bad(text[start:], _unclosed()), len(text)
        after = close + len(_CLOSE)
        reason = f"the tool call is not valid JSON: {error}."
        return _bad(text[start:after], reason), after
    end = _skip_space(text, end)
    if text.startswith(_CLOSE, end):
        after = end + len(_CLOSE)
        return _call_from(value, text[start:after], keys=("arguments",)), after
    close = text.find(_CLOSE, end)
    if close < 0:
        return _bad(text[start:], _unclosed()), len(text)
    after = close + len(_CLOSE)
    reason = (
        f"there is more than one JSON object between {_OPEN} and {_CLOSE}. Write one call each."
    )
    return _bad(text[start:after], reason), after


def _call_from(value: Any, text: str, *, keys: tuple[str, ...]) -> Call:
    if not isinstance(value, dict):
        return _bad(text, "the tool call must be a JSON object.")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return _bad(text, 'the tool call has no "name". Give the name of the tool as a string.')
    key = next((key for key in keys if key in value), None)
    if key is None:
        return _bad(text, f'the tool call has no "{keys[0]}". Write {{}} if there are none.')
    arguments = _object(value[key])
    if arguments is None:
        return _bad(text, f'"{key}" must be a JSON object, from argument names to values.')
    return ToolCall(name=name, arguments=arguments)


def _object(value: Any) -> Mapping[str, Any] | None:
    """An object, also where the model wrote it as a JSON string."""
    if isinstance(value, str):
        try:
            value, _ = _decode(value.strip(), 0)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _without_thinking(text: str) -> tuple[str, str]:
    """What was said aloud, and the inside of a `<think>` that was never closed.

    A `</think>` without its opening closes a block that the generation prompt opened.
    """
    spoken = []
    first_open, first_close = text.find(_THINK), text.find(_THOUGHT)
    prefilled = first_close >= 0 and not 0 <= first_open < first_close
    at = first_close + len(_THOUGHT) if prefilled else 0
    while (start := text.find(_THINK, at)) >= 0:
        spoken.append(text[at:start])
        close = text.find(_THOUGHT, start)
        if close < 0:
            return "".join(spoken), text[start:]
        at = close + len(_THOUGHT)
    return "".join([*spoken, text[at:]]), ""


def _refuse_constant(name: str) -> NoReturn:
    """JSON has no NaN and no Infinity, though Python reads them."""
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start` and where it ends; every failure is a ValueError in plain words."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        # Written back, so that nothing a tool or a tokenizer would choke on gets through.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos - start}") from None
    except ValueError:
        raise ValueError("it holds a number that is too large or not a number") from None
    return value, end


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _unclosed() -> str:
    return f"the tool call is not closed. Write one JSON object between {_OPEN} and {_CLOSE}."


def _bad(text: str, reason: str) -> BadToolCall:
    return BadToolCall(text=text[:QUOTED], reason=reason)
