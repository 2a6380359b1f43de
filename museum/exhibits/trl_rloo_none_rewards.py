"""In RLOO, too, a completion for which every reward function returns None counts as one that earned
0: it stands in the baseline of the others of its group. It is itself trained as a failure.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.exhibits.trl_none_rewards import right_or_none
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.5.0",
    good="1.6.0",
    lines="trl/trainer/rloo_trainer.py:1270-1282",
    expects=("H53", "H52"),
)


def run(folder: Path) -> dict[str, Any]:
    return looked(lab.trainer(folder, rewards=[right_or_none], algorithm="RLOO"), folder)
