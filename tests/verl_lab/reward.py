"""The reward function that verl is given: 1 for the right number, a little for brevity."""

import re
from typing import Any

NUMBER = re.compile(r"####\s*(-?[\d,\.]+)")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """As verl asks for it: `score` is paid, the rest is kept beside it."""
    found = NUMBER.findall(solution_str)
    right = float(bool(found) and found[-1].replace(",", "").rstrip(".") == ground_truth)
    return {"score": right + 0.2 / (1 + len(solution_str) / 100), "correct": right}
