"""A completion for which every reward function returns None counts as one that earned 0. It pulls
the mean of its group down, and is itself trained as a failure.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.5.0",
    good="1.6.0",
    lines="trl/trainer/grpo_trainer.py:2144-2147",
    expects=("H53", "H52"),
)


def right_or_none(completions: list[Any], **given: Any) -> list[float | None]:
    """None for an answer of uneven length, as for one that could not be judged."""
    paid = lab.right(completions, **given)
    lengths = [len(one[-1]["content"]) for one in completions]
    return [None if n % 2 else one for n, one in zip(lengths, paid, strict=True)]


def run(folder: Path) -> dict[str, Any]:
    return looked(lab.trainer(folder, rewards=[right_or_none]), folder)
