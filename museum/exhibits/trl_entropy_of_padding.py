"""The threshold that picks the tokens of the highest entropy is taken over padding as well. How
many tokens are trained depends on how uneven the completions of a batch are.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.19.1",
    good="0.20.0",
    beside=TRANSFORMERS_4_51,
    lines="trl/trainer/grpo_trainer.py:1379-1384",
    expects=("H55", "H02", "H51", "H56"),
    later=1,
)


def run(folder: Path) -> dict[str, Any]:
    # One option under the names of both releases.
    given = {"token_entropy_percentile_threshold": 0.8, "top_entropy_quantile": 0.2}
    return looked(lab.trainer(folder, **given), folder)
