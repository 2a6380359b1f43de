"""A row of prime-rl's token export: `token_exports/step_N/rank_R.jsonl`, one sequence a line.

    {"schema_version": 1, "step": 3, "export_step": 3, "rank": 0, "run_id": null, "env_name": "x",
     "token_ids": [...], "loss_mask": [false, ..., true], "advantages": [...], "rewards": [...],
     "inference_logprobs": [...], "trainer_logprobs": [...], "entropy": [...], ...}

Every list is over the tokens of the sequence, prompt included. Version 0.8 writes no `rewards`.
Switched on by `trainer.enable_token_export`, until trace annotations took its place.
"""

from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.kind import Kind, Row, constant, counted, hashed, sequence
from flatline.trace.importers.numbers import number, whole

_NEEDS = frozenset({"token_ids", "loss_mask", "inference_logprobs", "trainer_logprobs"})
_OWN = _NEEDS | {
    *("schema_version", "step", "export_step", "rank", "micro_step", "micro_sequence_idx"),
    *("export_sequence_idx", "run_id", "env_name", "position_ids", "advantages", "losses"),
    *("rewards", "entropy", "mismatch_kl", "log_importance_ratio", "importance_ratio"),
    *("prob_delta", "is_masked", "is_masked_high", "is_masked_low"),
    *("rl_weights", "ce_weights", "ref_kl_weights"),
}


def _rollouts(values: Mapping[str, Any]) -> list[Row]:
    tokens = sequence(
        values["token_ids"],
        values["loss_mask"],
        sampler=values["inference_logprobs"],
        trainer=values["trainer_logprobs"],
    )
    mask = values["loss_mask"] if tokens else None
    step = whole(values.get("export_step"))
    row: Row = {
        "step": whole(values.get("step")) if step is None else step,
        "prompt_id": hashed(tokens["prompt_ids"]) if tokens else None,
        "reward": _first(values.get("rewards")),
        "advantage": constant(values.get("advantages"), mask),
        "parts": {},
        "tokens": tokens,
        **counted(tokens),
    }
    return [row]


def _first(rewards: Any) -> float | None:
    """A sequence's reward stands at all of its tokens."""
    return number(rewards[0]) if isinstance(rewards, list) and rewards else number(rewards)


KIND = Kind(
    needs=_NEEDS,
    reward="rewards",
    known=_OWN,
    rollouts=_rollouts,
    may_lack_reward=True,
    note="The export holds only sequences that were trained on: groups without any spread, and "
    "rollouts that were filtered out, are not in it.",
)
