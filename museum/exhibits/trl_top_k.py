"""`top_k` is None unless it is given, and transformers takes None for its own default of 50.
Tokens beyond the 50 likeliest are never drawn, and scored as if they could have been.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.26.2",
    good="0.29.1",
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_config.py:442",
    expects=("H21", "H50"),
    misread=(
        "what is said of 0.26.2 is trl_right_padding, which 0.27.0 has too: that release stood "
        "in the place of 0.29.1 in the first run, and was not silent"
    ),
    later=1,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(lab.trainer(folder, temperature=1.3), folder)
