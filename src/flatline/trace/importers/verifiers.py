"""A row of the `results.jsonl` of verifiers' first API (v0), with messages or plain text.

    {"example_id": 0, "prompt": [{"role": "user", "content": "..."}], "completion": [...],
     "answer": "72", "reward": 1.0, "metrics": {"exact_match": 1.0}, "is_truncated": false,
     "token_usage": {"input_tokens": 210.0, "output_tokens": 64.0}}

Older versions put the metrics beside the rest instead of in an object.
"""

from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.kind import Kind, Row
from flatline.trace.importers.numbers import number, numbers_in, whole
from flatline.trace.importers.texts import messages_in, prompt_id, told

_NEEDS = frozenset({"prompt", "completion", "reward"})
_OWN = _NEEDS | {
    *("step", "example_id", "id", "answer", "info", "task", "error", "timing", "metrics"),
    *("is_completed", "is_truncated", "stop_condition", "tool_defs", "token_usage", "advantage"),
    *("generation_ms", "scoring_ms", "total_ms", "error_chain", "long_error_chain"),
}


def _rollouts(values: Mapping[str, Any]) -> list[Row]:
    """`input_tokens` counts every turn's context again, so it is left out."""
    prompt, completion = told(values["prompt"]), values["completion"]
    metrics, usage = values.get("metrics"), values.get("token_usage")
    said = [message for message in messages_in(completion) if message.get("role") == "assistant"]
    row: Row = {
        "step": whole(values.get("step")),
        "prompt_id": prompt_id(values.get("example_id"), prompt),
        "reward": number(values["reward"]),
        "advantage": number(values.get("advantage")),
        "parts": numbers_in(metrics if isinstance(metrics, dict) else values, leave_out=_OWN),
        "finish": "length" if values.get("is_truncated") is True else None,
        "turns": len(said) or None,
        "tool_calls": sum(map(_calls, said)) if said else None,
        "model_tokens": whole(usage.get("output_tokens")) if isinstance(usage, dict) else None,
        "prompt": prompt,
        "completion": told(completion),
        "gold": told(values.get("answer")),
    }
    return [row]


def _calls(message: Mapping[str, Any]) -> int:
    calls = message.get("tool_calls")
    return len(calls) if isinstance(calls, list) else 0


KIND = Kind(needs=_NEEDS, reward="reward", known=_OWN, rollouts=_rollouts)
