"""A row of SkyRL's evaluation dump: `EXPORT/dumped_evals/global_step_N_evals/SOURCE.jsonl`.

    {"input_prompt": "...", "output_response": "...", "score": 1.0, "stop_reason": "stop",
     "env_class": "gsm8k", "data_source": "x",
     "env_extras": {"reward_spec": {"ground_truth": "72"}}}

`score` is a number, or one per token. The training batches (`dumped_data/*.pkl`) are pickles, which
are never opened.
"""

from collections.abc import Mapping
from typing import Any

from flatline.trace.importers.kind import Kind, Row
from flatline.trace.importers.numbers import number
from flatline.trace.importers.texts import prompt_id, told

_NEEDS = frozenset({"input_prompt", "output_response", "score"})
_OWN = _NEEDS | {"stop_reason", "env_class", "env_extras", "data_source"}
_FINISH = {"stop": "eos", "length": "length"}


def _rollouts(values: Mapping[str, Any]) -> list[Row]:
    prompt, extras, reason = (values.get(k) for k in ("input_prompt", "env_extras", "stop_reason"))
    spec = extras.get("reward_spec") if isinstance(extras, dict) else None
    row: Row = {
        "step": None,
        "prompt_id": prompt_id(None, told(prompt)),
        "reward": _total(values["score"]),
        "parts": {},
        "finish": _FINISH.get(reason) if isinstance(reason, str) else None,
        "prompt": told(prompt),
        "completion": told(values["output_response"]),
        "gold": told(spec.get("ground_truth")) if isinstance(spec, dict) else None,
    }
    return [row]


def _total(score: Any) -> float | None:
    if not isinstance(score, list):
        return number(score)
    known = [number(one) for one in score]
    return sum(one for one in known if one is not None) if None not in known and known else None


KIND = Kind(
    needs=_NEEDS,
    reward="score",
    known=_OWN,
    rollouts=_rollouts,
    note="These are evaluation rollouts of SkyRL; its training batches are pickles, not read.",
)
