"""Somebody's training script, run unchanged up to its `train()`; what happens there is ours."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from flatline.bench.mutants.planting import Ground
from flatline.bench.mutants.sites import Mutation

AtTrain = Callable[[Any], None]
"""Gets the trainer in place of its `train()`."""


class Reached(BaseException):
    """The script has come to where it was wanted, and what was wanted of it is done."""


def run_until_train(
    script: Ground, arguments: Sequence[str], at_train: AtTrain, mutation: Mutation | None = None
) -> bool:
    """Run a script as `python SCRIPT ARGUMENTS` would, until a trainer in it is trained.

    Returns whether that, or something else that raised `Reached`, came to pass.
    """
    from transformers import Trainer

    trained = Trainer.train

    def instead(trainer: Any, *args: Any, **kwargs: Any) -> None:
        Trainer.train = trained
        at_train(trainer)
        raise Reached

    Trainer.train = instead
    sys.argv, sys.path[0] = [str(script.file), *arguments], str(script.file.parent)
    module = ModuleType("__main__")
    module.__file__ = str(script.file)
    try:
        exec(script.code(mutation), module.__dict__)  # what `python SCRIPT` does
    except Reached:
        return True
    finally:
        Trainer.train = trained
    return False
