"""Between the turns of a completion stand the replies of tools, as the template renders them.

What was trained on is ids, what reward functions read is messages: both must tell one story.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import iscoroutinefunction
from itertools import groupby, pairwise
from typing import Any

from flatline.live.stage_found import StageFound, departs
from flatline.live.where.package import TRL, library_of
from flatline.spec.prompts import reply_ids

OPENING = "Between turns, "
"""Every finding of this look begins with it."""
FEWEST = 3
"""Calls without a reply that must be seen, where nobody has one."""
ROOM = 2
"""A completion has room for a reply below its longest length divided by this."""
UNTOLD = "in the messages that reward functions read"
BEYOND = "more replies of tools than were asked for"
NOT_RUN = "get an error for a reply, and the tool answers when it is called by hand"
OTHERS_REPLY = "gets a reply that bears another name"
"""What findings of these looks say."""
OTHERS = ("rollout_func", "environments", "environment_factories")
"""What plays turns of its own."""

Messages = Sequence[Mapping[str, Any]]


def judge_turns(trainer: Any, result: Any) -> StageFound | None:
    """`result` is what TRL sampled. None where replies are as they must be, or where none is
    known."""
    if not _known(trainer, result):
        return None
    return (
        _untold(result)
        or next((found for _, found in wrong_replies(trainer, result)), None)
        or _not_run(trainer, result)
        or _misnamed(result)
        or _without_leave(trainer, result)
        or _unanswered(trainer, result)
        or _stopped_early(trainer, result)
    )


def wrong_replies(trainer: Any, result: Any) -> Iterator[tuple[list[int], StageFound]]:
    """Ids between two turns that are not the reply through the template."""
    tokenizer = trainer.processing_class
    options = getattr(trainer.args, "chat_template_kwargs", None) or {}
    template = getattr(trainer, "chat_template", None)
    for row, (ids, mask, messages) in enumerate(zip(*result[1:4], strict=True)):
        for found, replies in zip(_given(ids, mask), _replies(messages), strict=False):
            expected = reply_ids(tokenizer, replies, template, options)
            if expected is not None and expected != found:
                yield (
                    found,
                    departs(
                        "completions",
                        f"{OPENING}row {row} is not given the reply of its tool through the "
                        f"template: {len(expected)} tokens expected, {len(found)} found.",
                        f"expected {tokenizer.decode(expected)!r}, "
                        f"found {tokenizer.decode(found)!r}",
                    ),
                )


def _known(trainer: Any, result: Any) -> bool:
    """Whether TRL's own tool loop played, with messages to show for it."""
    if not getattr(trainer, "tools", None) or any(getattr(trainer, one, None) for one in OTHERS):
        return False
    lists = isinstance(result, tuple) and len(result) > 3 and isinstance(result[2], list)
    return lists and hasattr(trainer, "_get_tool_suffix_ids")


def _untold(result: Any) -> StageFound | None:
    for row, (ids, mask, messages) in enumerate(zip(*result[1:4], strict=True)):
        trained, told = len(list(_given(ids, mask))), len(list(_replies(messages)))
        if trained != told:
            return departs(
                "completions",
                f"{OPENING}row {row} has {trained} tool replies in what is trained, and {told} "
                f"{UNTOLD}.",
            )
    return None


def _misnamed(result: Any) -> StageFound | None:
    """Each reply bears the name of a call of the turn before it, where it bears any."""
    for row, messages in enumerate(result[3]):
        for calls, replies in _answered(messages):
            called, replied = [one["name"] for one in calls], [one.get("name") for one in replies]
            strange = [name for name in replied if name is not None and name not in called]
            if called and strange:
                found = departs(
                    "completions",
                    f"{OPENING}row {row} calls `{called[0]}` and {OTHERS_REPLY}: {strange[0]!r}.",
                    f"called: {calls[0]}; replied: {dict(replies[0])}",
                )
                return replace(found, row=row)
    return None


def _not_run(trainer: Any, result: Any) -> StageFound | None:
    """Calls of a tool that is there all get an error, and the tool does answer them. It is called
    only where all fail, and a policy that writes broken calls makes it fail by hand as well."""
    tools = _by_name(trainer)
    rows = [
        (row, call, reply)
        for row, messages in enumerate(result[3])
        for calls, replies in _answered(messages)
        for call, reply in zip(calls, replies, strict=False)
        if call["name"] in tools
    ]
    failing = len(rows) >= FEWEST and all(_is_error(one.get("content")) for _, _, one in rows)
    if not failing or not all(_answers(tools[call["name"]], call) for _, call, _ in rows[:FEWEST]):
        return None
    row, call, reply = rows[0]
    text = f"{OPENING}all {len(rows)} calls {NOT_RUN}."
    example = f"row {row} calls {call}; its reply is {reply.get('content')!r}"
    return replace(departs("completions", text, example), row=row)


def _by_name(trainer: Any) -> dict[str, Callable[..., Any]]:
    """Tools that can be called by hand."""
    tools = (tool for tool in trainer.tools if not iscoroutinefunction(tool))
    return {getattr(tool, "__name__", ""): tool for tool in tools}


def _answers(tool: Callable[..., Any], call: Mapping[str, Any]) -> bool:
    return not _is_error(_reply(tool, call))


def _reply(tool: Callable[..., Any], call: Mapping[str, Any]) -> Any:
    """What a call gets, as TRL has it where it fails."""
    try:
        return tool(**call["arguments"])
    except Exception as error:  # a tool of the user's may raise anything
        return {"error": str(error)}


def _is_error(content: Any) -> bool:
    """Whether it is what TRL writes for a call that failed, or what a tool says of one."""
    return str(content).startswith("{'error':")


def _answered(messages: Messages) -> Iterator[tuple[list[Any], list[Mapping[str, Any]]]]:
    """The calls of each turn that has any, with the replies that follow it."""
    pieces = [(is_reply, list(piece)) for is_reply, piece in groupby(messages, key=_is_reply)]
    for (_, said), (is_reply, replies) in pairwise(pieces):
        calls = [one.get("function") for one in said[-1].get("tool_calls") or ()]
        if is_reply and all(isinstance(one, Mapping) and "name" in one for one in calls):
            yield calls, replies


def _without_leave(trainer: Any, result: Any) -> StageFound | None:
    """A call gets a reply that comes after the last one asked for."""
    most = getattr(trainer.args, "max_tool_calling_iterations", None)
    if most is None or _plays_its_own_way(trainer):
        return None
    rounds = [len(list(_replies(messages))) for messages in result[3]]
    beyond = [row for row, count in enumerate(rounds) if count > most]
    if not beyond:
        return None
    return departs(
        "completions",
        f"{OPENING}{len(beyond)} of {len(rounds)} rows get {BEYOND}: up to {max(rounds)}, and "
        f"`max_tool_calling_iterations` is {most}.",
        f"row {beyond[0]} has {rounds[beyond[0]]}",
        measured=float(max(rounds)),
    )


def _plays_its_own_way(trainer: Any) -> bool:
    """A loop of the user's own may end where it likes."""
    loop = getattr(type(trainer), "_tool_call_loop", None)
    return loop is not None and library_of(loop.__module__) != TRL


def _unanswered(trainer: Any, result: Any) -> StageFound | None:
    """Tools are called, there is room and leave for a reply, and nobody gets one."""
    room = trainer.args.max_completion_length / ROOM
    rows = [
        row
        for row, (ids, messages) in enumerate(zip(result[1], result[3], strict=True))
        if messages and len(ids) < room and messages[-1].get("tool_calls")
    ]
    answered = any(True for messages in result[3] for _ in _replies(messages))
    asking = len(rows)
    if answered or asking < FEWEST or getattr(trainer.args, "max_tool_calling_iterations", 1) == 0:
        return None
    text = f"{OPENING}{asking} rows call a tool, and none gets a reply."
    return replace(departs("completions", text), row=rows[0])


def _stopped_early(trainer: Any, result: Any) -> StageFound | None:
    """Some calls get a reply, and a later one does not, though there is room and leave for it. TRL
    drops a reply that does not fit, so the longest one that is there may be short beside it."""
    most = getattr(trainer.args, "max_tool_calling_iterations", None)
    pieces = zip(result[1], result[2], strict=True)
    longest = max((len(one) for ids, mask in pieces for one in _given(ids, mask)), default=0)
    if _plays_its_own_way(trainer):
        return None
    config = getattr(getattr(trainer, "model", None), "config", None)
    context = getattr(config, "max_position_embeddings", math.inf)
    for row, (prompt, ids, _, messages) in enumerate(zip(*result[:4], strict=True)):
        room = min(trainer.args.max_completion_length, context - len(prompt) - 1) - len(ids)
        rounds = len(list(_replies(messages)))
        calls = messages and messages[-1].get("tool_calls")
        left = longest and calls and (most is None or rounds < most)
        # The tool is called by hand last, and only where all else says that it was not.
        if left and ROOM * longest <= room and _length_by_hand(trainer, messages) <= room:
            allowed = "any number" if most is None else most
            text = (
                f"{OPENING}row {row} makes tool call {rounds + 1} and gets no reply; {allowed} "
                "may be made."
            )
            return replace(departs("completions", text), row=row)
    return None


def _length_by_hand(trainer: Any, messages: Messages) -> int:
    """Tokens of the replies to the last turn's calls; 0 where these cannot be made by hand."""
    calls = [
        one.get("function") or {} for one in (messages and messages[-1].get("tool_calls")) or ()
    ]
    tools = _by_name(trainer)
    if not calls or not all(call.get("name") in tools for call in calls):
        return 0
    replies = [
        {"role": "tool", "name": call["name"], "content": str(_reply(tools[call["name"]], call))}
        for call in calls
    ]
    template = getattr(trainer, "chat_template", None)
    options = getattr(trainer.args, "chat_template_kwargs", None) or {}
    return len(reply_ids(trainer.processing_class, replies, template, options) or ())


def own(ids: Sequence[int], mask: Sequence[int]) -> Iterator[list[int]]:
    """What the model wrote, turn by turn."""
    return _pieces(ids, mask, by_model=True)


def _given(ids: Sequence[int], mask: Sequence[int]) -> Iterator[list[int]]:
    """What the model did not write, piece by piece."""
    return _pieces(ids, mask, by_model=False)


def _pieces(ids: Sequence[int], mask: Sequence[int], *, by_model: bool) -> Iterator[list[int]]:
    for written, piece in groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1])):
        if written == by_model:
            yield [token for token, _ in piece]


def _replies(messages: Messages) -> Iterator[list[Mapping[str, Any]]]:
    """Messages of tools that follow each other."""
    for is_reply, piece in groupby(messages, key=_is_reply):
        if is_reply:
            yield list(piece)


def _is_reply(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool"
