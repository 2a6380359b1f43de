"""The tasks by name. The tuple is the one registry: a class added to it is known everywhere."""

import inspect
from typing import Any

from flatline.errors import ConfigError
from flatline.tasks.base import Task
from flatline.tasks.gsm8k import GSM8K
from flatline.tasks.musique import Musique
from flatline.tasks.toolmath import ToolMath

TASKS: tuple[type[Task], ...] = (Musique, GSM8K, ToolMath)


def make_task(name: str, **options: Any) -> Task:
    """The task called `name`. Options are arguments of its constructor."""
    kind = next((task for task in TASKS if task.name == name), None)
    if kind is None:
        known = ", ".join(task.name for task in TASKS)
        raise ConfigError(f"No task is called {name!r}.\nKnown: {known}.")
    accepted = list(inspect.signature(kind).parameters)
    for option in options:
        if option not in accepted:
            raise ConfigError(
                f"{name} has no option {option!r}.\nIt has: {', '.join(accepted) or 'none'}."
            )
    return kind(**options)
