"""Somebody's training script, run unchanged up to its `train()`; what happens there is ours."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from flatline.bench.mutants.planting import ChangedLoader
from flatline.bench.mutants.sites import Mutation
from flatline.errors import ConfigError

AtTrain = Callable[[Any], None]
"""Gets the trainer in place of its `train()`."""


class _Reached(BaseException):
    """The script has come to `train()`, and what was wanted of it is done."""


def run_until_train(
    script: Path, arguments: Sequence[str], at_train: AtTrain, mutation: Mutation | None = None
) -> None:
    """Run a script as `python SCRIPT ARGUMENTS` would, until a trainer in it is trained."""
    from transformers import Trainer

    trained = Trainer.train

    def instead(trainer: Any, *args: Any, **kwargs: Any) -> None:
        Trainer.train = trained
        at_train(trainer)
        raise _Reached

    Trainer.train = instead
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.parent)
    try:
        planted = mutation if mutation and mutation.module == str(script) else None
        loader = ChangedLoader("__main__", str(script), planted)
        module = ModuleType("__main__")
        module.__file__ = str(script)
        loader.exec_module(module)
    except _Reached:
        return
    finally:
        Trainer.train = trained
    raise ConfigError(
        f"{script} ended without calling `train()` of a trainer.\n"
        "What is changed in it is judged by its training, so there is nothing to judge.\n"
        "Give the arguments with which it trains behind `--`."
    )
