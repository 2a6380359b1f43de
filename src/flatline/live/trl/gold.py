"""Which column of the data holds right answers.

By its name where it has a usual one. Else the one column that the reward functions ask for by name,
where it holds numbers: a number that a function judges by is what an answer is compared with. A
word may as well be one that must not be said.
"""

import inspect
from collections.abc import Mapping
from numbers import Real
from typing import Any

from flatline.live.batch import GOLD_NAMES
from flatline.live.trl.grpo import GrpoTrainer

ROWS = 16
"""Rows of the data that are looked at."""
DIFFERENT = 3
"""Values that must differ in them; a flag has two."""
NOT_COLUMNS = frozenset({"prompt", "prompts", "completion", "completions", "completion_ids"})


def gold_names(trainer: GrpoTrainer) -> tuple[str, ...]:
    """Columns that may hold the right answer, where the user named none."""
    data = getattr(trainer, "train_dataset", None)
    columns = set(getattr(data, "column_names", None) or ()) - NOT_COLUMNS
    if columns.intersection(GOLD_NAMES):
        return GOLD_NAMES
    asked = columns & _all_parameters(trainer)
    return tuple(asked) if len(asked) == 1 and _are_numbers(data, *asked) else GOLD_NAMES


def parameters(function: Any) -> Mapping[str, Any]:
    """What a function asks for by name; nothing where it does not say."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _all_parameters(trainer: GrpoTrainer) -> set[str]:
    functions = getattr(trainer, "reward_funcs", None) or ()
    return {name for function in functions for name in parameters(function)}


def _are_numbers(data: Any, name: str) -> bool:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        return False
    values = [data[at][name] for at in range(min(ROWS, len(data)))]
    numbers = all(isinstance(one, Real) and not isinstance(one, bool) for one in values)
    return numbers and len(set(values)) >= DIFFERENT
