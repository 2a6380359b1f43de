"""A row of verl's rollout dump: `trainer.rollout_data_dir` gets a file `STEP.jsonl` per step.

    {"input": "...", "output": "...", "gts": "72", "score": 1.0, "step": 3, "acc": true}

What else a reward function returns is dumped beside these and becomes a part of the reward. The v1
trainer of 0.9 adds `uid`, which names the output and not the prompt: PROMPT_SESSION_OUTPUT.
"""

import re
from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.kind import Kind, Row
from flatline.trace.importers.numbers import number, numbers_in, whole
from flatline.trace.importers.texts import prompt_id, told

_NEEDS = frozenset({"input", "output", "score"})
_OWN = _NEEDS | {"gts", "step", "uid", "request_id", "data_source"}
_OUTPUT = re.compile(r"(.+)_\d+_\d+", re.DOTALL)


def _rollouts(values: Mapping[str, Any]) -> list[Row]:
    """Texts come without their token ids, so lengths are unknown."""
    prompt = told(values["input"])
    row: Row = {
        "step": whole(values.get("step")),
        "prompt_id": prompt_id(_prompt_of(values.get("uid")), prompt),
        "reward": number(values["score"]),
        "parts": numbers_in(values, leave_out=_OWN),
        "prompt": prompt,
        "completion": told(values["output"]),
        "gold": told(values.get("gts")),
    }
    return [row]


def _prompt_of(uid: Any) -> Any:
    found = _OUTPUT.fullmatch(uid) if isinstance(uid, str) else None
    return found[1] if found else uid


KIND = Kind(needs=_NEEDS, reward="score", known=_OWN, rollouts=_rollouts)
