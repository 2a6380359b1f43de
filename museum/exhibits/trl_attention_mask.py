"""The policy is scored without an attention mask, so prompts that are padded on the left attend
to their padding, at positions that it shifts. The more the prompts of a batch differ in length,
the further the trained log-probs are from those that were sampled.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.exhibit import Exhibit
from museum.watched import STEPS, watched

EXHIBIT = Exhibit(
    bad="0.14.0",
    good="0.15.0",
    beside=TRANSFORMERS_4_51,
    lines="trl/trainer/grpo_trainer.py:432",
    expects=("H15", "H54"),
)


def run(folder: Path) -> dict[str, Any]:
    # At temperature 1 the defect of trl_temperature, which both releases have, does not show.
    given = {"temperature": 1.0, "max_steps": STEPS}
    return watched(lambda paid: lab.trainer(folder, rewards=[paid], **given), folder)
