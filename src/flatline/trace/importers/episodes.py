"""An episode or a trace of verifiers' v1 API, as verifiers 0.4 and prime-rl write them.

    {"id": "...", "env": {...}, "group": {"id": "g"}, "run": {"work": {"type": "train", "step": 3}},
     "task": {...}, "traces": [{"id": "...", "task": {"key": "k", "data": {"answer": "72"}},
       "rewards": {"exact": {"score": 1.0, "weight": 1.0}}, "stop_condition": "agent_completed",
       "nodes": [{"parent": null, "message": {"role": "user", ...}, "token_ids": [...],
                  "mask": [false, ...]},
                 {"parent": 0, "sampled": true, "message": {"role": "assistant", ...},
                  "token_ids": [...], "mask": [false, true, ...], "logprobs": [...]}]}]}

A node holds the tokens that its message adds; `mask` marks what the model sampled, and lists such
as `logprobs` are over those only. A path from a root to a leaf is one sequence; where history was
rewritten there are several, and the tokens of the last are read. What the trainer found out later
(`trainer_logprobs`, `advantages`) is in the nodes or comes from prime-rl's annotations.
"""

from collections.abc import Mapping
from typing import Any

from flatline.rollout.record import Author
from flatline.trace.importers.kind import Kind, Row, constant, counted
from flatline.trace.importers.numbers import number, whole
from flatline.trace.importers.texts import prompt_id, told

_EPISODE = frozenset({"task", "traces"})
_TRACE = frozenset({"task", "nodes", "rewards"})
_OWN = frozenset(
    {
        *("id", "env", "task", "group", "run", "ok", "is_timeout", "errors", "traces", "version"),
        *("verifiers", "agent", "tools", "nodes", "calls", "mm_token_type_id_map", "rewards"),
        *("request_rewrites", "response_rewrites", "metrics", "info", "root_reply", "extra_usage"),
        *("is_completed", "stop_condition", "timing", "num_input_tokens", "num_output_tokens"),
        "num_total_tokens",
    }
)
_FINISH = {
    "max_turns": "turns",
    "max_input_tokens": "context",
    "max_total_tokens": "context",
    "max_output_tokens": "length",
    "agent_completed": "eos",
}


def _of_episode(values: Mapping[str, Any]) -> list[Row]:
    """One row per trace of an agent that is trained; an episode that failed may have none."""
    traces = values["traces"] if isinstance(values["traces"], list) else []
    played = [one for one in traces if isinstance(one, dict)]
    trained = [one for one in played if _dict(one, "agent").get("trainable") is not False]
    return [row for trace in trained for row in _of_trace(trace, episode=values)]


def _of_trace(trace: Mapping[str, Any], *, episode: Mapping[str, Any] | None = None) -> list[Row]:
    episode = episode or {}
    paths = paths_of(trace)
    nodes = [trace["nodes"][at] for at in paths[-1]] if paths else []
    sampled = [node for node in nodes if node.get("sampled") is True]
    first = next((at for at, node in enumerate(nodes) if node.get("sampled") is True), len(nodes))
    task, work = _dict(trace, "task"), _dict(_dict(episode, "run"), "work")
    prompt = _said(nodes[:first])
    scores = _scores(trace)
    tokens = _tokens(nodes)
    row: Row = {
        "step": _step(_dict(trace, "info"), work),
        "prompt_id": prompt_id(task.get("key") or task.get("hash"), prompt),
        "reward": _reward(trace),
        "advantage": _advantage(trace, nodes),
        "parts": scores,
        "finish": _finish(trace),
        "turns": len(sampled) or None,
        "tool_calls": sum(map(_calls, sampled)) if sampled else None,
        "prompt": prompt,
        "completion": _said(nodes[first:]),
        "gold": _answer(_dict(task, "data")),
        "tokens": tokens,
        "same": _dict(episode, "group").get("id"),
        "sequences": len(paths),
        "heldout": work.get("type") == "eval" or _dict(trace, "info").get("kind") == "eval",
        **counted(tokens),
    }
    return [row]


def paths_of(trace: Mapping[str, Any]) -> list[list[int]]:
    """Node numbers from root to leaf, one list for every leaf, in the order of the leaves."""
    nodes = trace.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        return []
    parents = [whole(node.get("parent")) for node in nodes]
    known = {parent for parent in parents if parent is not None}
    paths = []
    for leaf in (at for at in range(len(nodes)) if at not in known):
        path: list[int] = []
        at: int | None = leaf
        # A parent stands before its child; anything else is no tree and must not be followed.
        while at is not None and at < len(nodes) and (not path or at < path[-1]):
            path.append(at)
            at = parents[at]
        paths.append(path[::-1])
    return paths


def _tokens(nodes: list[dict[str, Any]]) -> Row | None:
    """The sequence as a row of `tokens`; None where nodes carry no ids, as in an evaluation."""
    spans = [_span(node) for node in nodes]
    if not spans or any(span is None for span in spans):
        return None
    flat = {name: [v for span in spans if span for v in span[name]] for name in spans[0] or {}}
    start = next((at for at, who in enumerate(flat["author"]) if who == Author.MODEL), None)
    if start is None:
        return None
    row: Row = {"prompt_ids": flat.pop("ids")[:start]}
    row["ids"] = [one for span in spans if span for one in span["ids"]][start:]
    row |= {name: values[start:] for name, values in flat.items()}
    row = {name: None if _all_none(values) else values for name, values in row.items()}
    if row.get("trainer") is not None:
        # The trainer scores what it trains on, and says nothing of the rest.
        row["trained"] = [int(value is not None) for value in row["trainer"]]
    return row | {"prompt_ids": row["prompt_ids"] or []}


def _span(node: Mapping[str, Any]) -> dict[str, list[Any]] | None:
    ids, mask = node.get("token_ids"), node.get("mask")
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        return None
    if not all(isinstance(one, int) and 0 <= one < 2**31 for one in ids):
        return None
    return {
        "ids": ids,
        "author": [int(who) for who in _authors(node, mask)],
        "sampler": _spread(node.get("logprobs"), mask),
        "trainer": _spread(node.get("trainer_logprobs"), mask),
        "reference": _spread(node.get("reference_logprobs"), mask),
    }


def _authors(node: Mapping[str, Any], mask: list[Any]) -> list[Author]:
    """The model's tokens by the mask; of the others, the body of a message or its template."""
    body = node.get("is_content")
    if not isinstance(body, list) or len(body) != len(mask):
        body = [not node.get("sampled")] * len(mask)
    other = [Author.TOOL if one else Author.TEMPLATE for one in body]
    return [Author.MODEL if on else who for on, who in zip(mask, other, strict=True)]


def _spread(values: Any, mask: list[Any]) -> list[float | None]:
    """A list over the sampled tokens laid out over all; nothing where it has another length."""
    if not isinstance(values, list) or len(values) != sum(map(bool, mask)):
        return [None] * len(mask)
    given = iter(values)
    return [number(next(given)) if on else None for on in mask]


def _all_none(values: list[Any]) -> bool:
    return all(value is None for value in values)


def _reward(trace: Mapping[str, Any]) -> float | None:
    """The weighted sum; None where scoring did not run."""
    given = [one for one in _dict(trace, "rewards").values() if isinstance(one, dict)]
    scored = [(number(one.get("score")), number(one.get("weight", 1.0))) for one in given]
    known = [(score, weight) for score, weight in scored if score is not None]
    return sum(s * (1.0 if w is None else w) for s, w in known) if known else None


def _scores(trace: Mapping[str, Any]) -> dict[str, float]:
    rewards = _dict(trace, "rewards").items()
    found = {name: number(one.get("score")) for name, one in rewards if isinstance(one, dict)}
    return {name: score for name, score in found.items() if score is not None}


def _advantage(trace: Mapping[str, Any], nodes: list[dict[str, Any]]) -> float | None:
    given = number(_dict(trace, "info").get("advantage"))
    if given is not None:
        return given
    lists = [node["advantages"] for node in nodes if isinstance(node.get("advantages"), list)]
    return constant([value for one in lists for value in one]) if lists else None


def _step(info: Mapping[str, Any], work: Mapping[str, Any]) -> int | None:
    """The step that trained on it, else the one that it was played for."""
    trained = whole(_dict(info, "train").get("trained_at_step"))
    return whole(work.get("step")) if trained is None else trained


def _finish(trace: Mapping[str, Any]) -> str | None:
    calls = trace.get("calls")
    called = [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []
    last = next((one for one in reversed(called) if not one.get("error")), {})
    if last.get("finish_reason") == "length":
        return "length"
    stop = trace.get("stop_condition")
    return _FINISH.get(stop) if isinstance(stop, str) else None


def _said(nodes: list[dict[str, Any]]) -> str | None:
    messages = [node["message"] for node in nodes if isinstance(node.get("message"), dict)]
    return told(messages) if messages else None


def _calls(node: Mapping[str, Any]) -> int:
    calls = _dict(node, "message").get("tool_calls")
    return len(calls) if isinstance(calls, list) else 0


def _answer(data: Mapping[str, Any]) -> str | None:
    answer = data.get("answer")
    return answer if isinstance(answer, str) else None


def _dict(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


EPISODE = Kind(needs=_EPISODE, reward="rewards", known=_OWN, rollouts=_of_episode)
TRACE = Kind(needs=_TRACE, reward="rewards", known=_OWN, rollouts=_of_trace)
