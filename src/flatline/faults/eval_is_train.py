"""What is held out is the training data itself.

Seen in verifiers, whose evaluation falls back to the training set where there is no other.

Strength: has no meaning here; `--eval-limit` says how many of them are played.
"""

from dataclasses import replace
from typing import ClassVar

from flatline.config import RunConfig
from flatline.faults.base import Fault
from flatline.tasks.datasets import parse_specs


class EvalIsTrain(Fault):
    name: ClassVar[str] = "eval-is-train"
    hypothesis: ClassVar[str] = "H46"
    settings: ClassVar[bool] = True

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        first = parse_specs(config.datasets)[0]
        rows = f"[{first.start or ''}:{first.stop or ''}]" if first.start or first.stop else ""
        held = f"{first.path},{first.config or ''},{first.split_or('train')}{rows}"
        return replace(config, eval_datasets=held)
