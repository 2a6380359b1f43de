"""A body in OpenAI's shape -> what is asked for. What cannot be honoured is refused, with reasons.

Settings that would change the tokens and that the engine does not have (penalties, logit bias,
forced tool calls, JSON mode) are errors: an answer that ignores them would be another experiment
than the one asked for. Fields that change nothing here (`user`, `metadata`, `store`) are let pass.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatline.errors import ConfigError
from flatline.rollout.sampling import Sampling
from flatline.serve.errors import RequestError, shown, wrong
from flatline.serve.messages import message_of, tool_of

MOST_CHOICES, MOST_STOPS, MOST_TOP = 64, 16, 20
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "best_of": (1,),
    "suffix": ("",),
    "echo": (False,),
    "functions": ([],),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "guided_json": (),
    "structured_outputs": (),
}
"""Settings that change tokens and that the engine lacks; with these values they change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What every kind of request has."""

    model: str | None
    """The name that the client gave."""
    sampling: Sampling
    """How tokens are drawn."""
    max_tokens: int | None
    """Tokens of one choice; None for all that the context has room for."""
    stops: tuple[str, ...]
    """Texts that end a turn; they are not part of it."""
    n: int
    """Choices."""
    seed: int | None
    """Of the random numbers; None for a fresh one."""
    logprobs: bool
    """Whether the log-prob of each token is wanted."""
    top: int
    """How many likely tokens are wanted at each position."""
    by_id: bool
    """Whether tokens are named by their ids, `token_id:7`, as vLLM does where it is asked to."""
    stream: bool
    """Whether the answer is wanted in pieces."""
    stream_usage: bool
    """Whether a last piece with the token counts is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """The next turn of a conversation."""

    wanted: Wanted
    """How it is to be written."""
    messages: tuple[Mapping[str, Any], ...]
    """The conversation so far, in the form that chat templates read."""
    tools: tuple[Mapping[str, Any], ...]
    """Schemas of the tools that the model may call, as the client wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """What follows a text, or token ids."""

    wanted: Wanted
    """How it is to be written."""
    prompt: str | tuple[int, ...]
    """What the model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsRequest:
    """Token ids in, token ids out: what prime-rl asks a vLLM server for."""

    wanted: Wanted
    """How it is to be written."""
    ids: tuple[int, ...]
    """What the model reads."""
    ends: frozenset[int]
    """Tokens that end it, besides the model's own."""


def body_of(raw: bytes) -> Mapping[str, Any]:
    """The JSON object of a body."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"The body is not JSON: {str(error)[:200]}.\nSend one JSON object, in UTF-8."
        ) from None
    if not isinstance(body, dict):
        raise RequestError(f"The body is a JSON {type(body).__name__}.\nSend one JSON object.")
    return body


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    wants_logprobs = _of(body, "logprobs", bool, False)
    top = _whole(body, "top_logprobs", 0, low=0, high=MOST_TOP)
    if top and not wants_logprobs:
        raise wrong("top_logprobs", top, "it needs `logprobs: true`")
    messages = _of(body, "messages", list, None)
    if not messages:
        raise RequestError("There are no `messages`.\nSend at least one.", param="messages")
    return ChatRequest(
        wanted=_wanted(body, logprobs=wants_logprobs, top=top),
        messages=tuple(message_of(message, f"messages[{i}]") for i, message in enumerate(messages)),
        tools=_tools(body),
    )


def text_request(body: Mapping[str, Any]) -> TextRequest:
    top = _whole(body, "logprobs", None, low=0, high=MOST_TOP)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not all(type(id) is int for id in prompt):
        raise wrong("prompt", prompt, "send several prompts as several requests")
    return TextRequest(
        wanted=_wanted(body, logprobs=top is not None, top=top or 0),
        prompt=prompt if isinstance(prompt, str) and prompt else _ids(prompt, "prompt"),
    )


def ids_request(body: Mapping[str, Any]) -> IdsRequest:
    params = _of(body, "sampling_params", dict, {})
    return IdsRequest(
        wanted=_wanted(
            {**params, "model": body.get("model"), "stream": body.get("stream")},
            logprobs=True,
            top=0,
        ),
        ids=_ids(body.get("token_ids"), "token_ids"),
        ends=frozenset(_ids(params.get("stop_token_ids") or [], "stop_token_ids", empty=True)),
    )


def _ids(given: Any, name: str, *, empty: bool = False) -> tuple[int, ...]:
    fine = isinstance(given, list) and all(type(id) is int and id >= 0 for id in given)
    if not fine or not (given or empty):
        raise wrong(name, given, "give a list of token ids")
    return tuple(given)


def _wanted(body: Mapping[str, Any], *, logprobs: bool, top: int) -> Wanted:
    _refuse_what_is_lacking(body)
    stream = _of(body, "stream", bool, False)
    options = _of(body, "stream_options", dict, {})
    most = body.get("max_completion_tokens")
    name = "max_tokens" if most is None else "max_completion_tokens"
    return Wanted(
        model=_of(body, "model", str, None),
        sampling=_sampling(body),
        max_tokens=_whole(body, name, None, low=1),
        stops=_stops(body),
        n=_whole(body, "n", 1, low=1, high=MOST_CHOICES) or 1,
        seed=_whole(body, "seed", None, low=-(2**63), high=2**63 - 1),
        logprobs=logprobs,
        top=top,
        by_id=_of(body, "return_tokens_as_token_ids", bool, False),
        stream=stream,
        stream_usage=stream and options.get("include_usage") is True,
    )


def _refuse_what_is_lacking(body: Mapping[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise RequestError(
                f"`{name}` is {shown(value)}, and flatline's engine has no such setting.\n"
                "It would change which tokens are written, so it is not ignored. Leave it out.",
                param=name,
            )


def _sampling(body: Mapping[str, Any]) -> Sampling:
    try:
        return Sampling(
            temperature=_number(body, "temperature", 1.0),
            top_p=_number(body, "top_p", 1.0),
            top_k=max(0, _whole(body, "top_k", 0, low=-1) or 0),
            min_p=_number(body, "min_p", 0.0),
        )
    except ConfigError as error:
        raise RequestError(str(error).replace("--", "")) from None


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("stop")
    stops = [given] if isinstance(given, str) else given or []
    fine = isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)
    if not fine or len(stops) > MOST_STOPS:
        raise wrong("stop", given, f"give one text or a list of at most {MOST_STOPS}")
    return tuple(stops)


def _tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools to show; none where the model is told not to call any."""
    tools = tuple(tool_of(tool, i) for i, tool in enumerate(_of(body, "tools", list, [])))
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            f"`tool_choice` is {shown(choice)}, and the engine cannot force a call.\n"
            'Send "auto", where the model decides, or "none".',
            param="tool_choice",
        )
    return () if choice == "none" else tools


def _of(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise wrong(name, value, f"give a {kind.__name__}")
    return value


def _whole(
    body: Mapping[str, Any],
    name: str,
    default: int | None,
    *,
    low: int,
    high: int | None = None,
) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or value < low or (high is not None and value > high):
        bounds = f"{low} or more" if high is None else f"from {low} to {high}"
        raise wrong(name, value, f"give a whole number, {bounds}")
    return value


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise wrong(name, value, "give a number")
    return number
