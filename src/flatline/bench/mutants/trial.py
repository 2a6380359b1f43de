"""One mutant: does it stop, change nothing, change the log alone, or change the training?

And what does the checkup say? Everything runs in the process that calls it, which is thrown away.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from flatline.bench.mutants.heard import train_for
from flatline.bench.mutants.planting import lines_executed, plant, source_of
from flatline.bench.mutants.script import run_until_train
from flatline.bench.mutants.sites import Mutation


class Effect(StrEnum):
    STOPS = "stops"
    """An exception tells the user."""
    HANGS = "hangs"
    SAME = "same"
    """Rewards, gradients, weights and log are equal to the last bit."""
    LOG = "log only"
    """The training is the same, and what is logged is not."""
    CHANGES = "changes"
    """It runs without a word, and trains otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A script and how far it is followed."""

    script: Path
    arguments: tuple[str, ...] = ()
    steps: int = 2


def trained(setup: Setup, mutation: Mutation | None) -> dict[str, Any]:
    """What a few steps did."""
    return _at_train(setup, mutation, lambda trainer: train_for(trainer, setup.steps))


def checked(setup: Setup, mutation: Mutation | None) -> dict[str, Any]:
    """What the checkup says before the first step, most likely cause first."""

    def look(trainer: Any) -> dict[str, Any]:
        import flatline

        report = flatline.checkup(trainer)
        told = [{"hypothesis": one.hypothesis, "text": one.text} for one in report.alarms]
        return {"alarms": told, "tested": report.tested}

    return _at_train(setup, mutation, look)


def executed(setup: Setup, modules: Sequence[str]) -> dict[str, list[int]]:
    """Module -> the lines of it that building the trainer and its steps run."""
    files = {module: source_of(module) for module in modules}
    with lines_executed(list(files.values())) as seen:
        trained(setup, None)
    return {module: sorted(seen[file]) for module, file in files.items()}


def effect_of(reference: dict[str, Any], found: dict[str, Any]) -> Effect:
    """How a run differs from the one without the change."""
    if found.get("error"):
        return Effect.HANGS if found["error"] == "timeout" else Effect.STOPS
    if found["steps"] != reference["steps"]:
        return Effect.CHANGES
    return Effect.SAME if found["log"] == reference["log"] else Effect.LOG


def _at_train(
    setup: Setup, mutation: Mutation | None, act: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    begun = time.perf_counter()
    if mutation is not None and mutation.module != str(setup.script):
        plant(mutation)
    try:
        run_until_train(
            setup.script, setup.arguments, lambda trainer: found.update(act(trainer)), mutation
        )
    except Exception as error:  # the mutant's own: it is the answer
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        found = {"error": f"{type(error).__name__}: {error}"[:300], "at": where}
    return {**found, "seconds": round(time.perf_counter() - begun, 2)}
