"""A row of verl's rollout dump: `trainer.rollout_data_dir` gets a file `STEP.jsonl` per step.

    {"input": "...", "output": "...", "gts": "72", "score": 1.0, "step": 3, "acc": true}

What else a reward function returns is dumped beside these and becomes a part of the reward.
"""

from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.numbers import number, numbers_in, whole
from flatline.trace.importers.told import prompt_id, told

NEEDS = frozenset({"input", "output", "score"})
REWARD = "score"
_OWN = NEEDS | {"gts", "step", "uid", "request_id", "data_source"}


def rollout(values: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `rollouts`. Texts come without their token ids, so lengths are unknown."""
    prompt = told(values["input"])
    return {
        "step": whole(values.get("step")),
        "prompt_id": prompt_id(values.get("uid"), prompt),
        "reward": number(values["score"]),
        "parts": numbers_in(values, leave_out=_OWN),
        "prompt": prompt,
        "completion": told(values["output"]),
        "gold": told(values.get("gts")),
    }
