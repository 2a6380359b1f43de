"""`flatline run train.py ARGS`: what `python train.py ARGS` would run, with flatline in it.

Nothing of the script is changed. Seed and output folder are set on its config object when that is
made; its GRPO trainer is taken hold of when it begins to train: remedies first, so that what is
recorded is what was trained.
"""

import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatline.errors import ConfigError
from flatline.files import write_atomically
from flatline.live.attach import attach, can_be_recorded
from flatline.remedies import Applied, apply, remedy_of
from flatline.script.heldout import HeldOut, held_out_of
from flatline.script.pilot import EndAfter, Pilot
from flatline.trace.announce import say


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What is done with a script."""

    script: Path
    arguments: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    """Codes of hypotheses whose cause is taken away."""
    record: Path | None = None
    """Folder of the trace; nothing is recorded where absent."""
    seed: int | None = None
    """In place of the script's own."""
    output: Path | None = None
    """In place of the script's `output_dir`."""
    evaluate: bool = False
    """Whether held-out rows are played before and after; they are recorded with the trace."""
    measured_with: tuple[str, ...] = ()
    """Remedies of the reward that are in force while held-out rows are paid."""
    steps: int | None = None
    """Optimizer steps after which the training ends; the script's own number where absent."""
    pilot: Path | None = None
    """A look before an experiment: where it is written."""


def run_script(asked: ScriptRun) -> None:
    """Run it. Raises `ConfigError` where it is not there, or trains nothing that can be held."""
    if not asked.script.is_file():
        raise ConfigError(
            f"{asked.script} is no file.\nType the script as you would after `python`: "
            "`flatline run train.py --its-own-flags`."
        )
    for code in asked.remedies:
        remedy_of(code)  # refused before anything is loaded
    trained: list[str] = []
    with _config_objects(asked), _trainings(asked, trained):
        _seeded(asked.seed)
        _execute(asked)
    if not trained:
        raise ConfigError(
            f"{asked.script} ended without training a GRPO trainer of TRL's, so nothing was "
            f"{'recorded' if asked.record else 'remedied'}.\n"
            "flatline takes hold of `trainer.train()`; a script that only trains under a flag must "
            "be given that flag, and your own loop is recorded with `flatline.watch`."
        )


def _execute(asked: ScriptRun) -> None:
    before = sys.argv, list(sys.path)
    sys.argv = [str(asked.script), *asked.arguments]
    sys.path.insert(0, str(asked.script.resolve().parent))
    try:
        runpy.run_path(str(asked.script), run_name="__main__")
    except Stopped:
        pass
    finally:
        sys.argv, sys.path[:] = before


class Stopped(BaseException):
    """The script has come as far as was wanted of it. No `except Exception` of its own may stop
    that."""


def _seeded(seed: int | None) -> None:
    """What a script makes before its trainer: data, adapters, a model from nothing."""
    if seed is not None:
        from transformers import set_seed

        set_seed(seed)


@contextmanager
def _config_objects(asked: ScriptRun) -> Iterator[None]:
    """Every config object gets our seed and folder, whatever it was made with."""
    from transformers import TrainingArguments

    own = TrainingArguments.__post_init__

    def made(config: Any) -> None:
        if asked.seed is not None:
            config.seed = asked.seed
        if asked.output is not None:
            config.output_dir = str(asked.output)
        own(config)

    with _replaced(TrainingArguments, "__post_init__", made):
        yield


@contextmanager
def _trainings(asked: ScriptRun, trained: list[str]) -> Iterator[None]:
    """The first GRPO training is held; `trained` then has its trainer's name."""
    from transformers import Trainer

    own, begun = Trainer.train, time.perf_counter()

    def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if trained or not can_be_recorded(trainer):
            if trained and asked.pilot is None:  # a pilot trains nothing but its checkup's steps
                say("a second training of the script runs as it is, without flatline.")
            return own(trainer, *args, **kwargs)
        trained.append(type(trainer).__name__)
        return _held(asked, trainer, lambda: own(trainer, *args, **kwargs), begun)

    with _replaced(Trainer, "train", train):
        yield


def _held(asked: ScriptRun, trainer: Any, train: Callable[[], Any], begun: float) -> Any:
    with ExitStack() as open_ones:
        rows = held_out_of(trainer) if asked.evaluate else []
        remedies = _remedied(asked, trainer)
        open_ones.callback(remedies.undo)
        if asked.pilot is not None:
            startup = time.perf_counter() - begun
            seen = Pilot(trainer, rows, remedies, asked.measured_with).look(train)
            _write_pilot(asked, trainer, seen | {"startup_seconds": startup})
            raise Stopped
        if asked.steps is not None:
            trainer.add_callback(EndAfter(asked.steps))
        if asked.record is not None:
            attached = attach(trainer, asked.record)
            open_ones.callback(attached.detach)
            if rows:
                trainer.add_callback(HeldOut(trainer, rows, asked.record, asked.measured_with))
        result = train()
        if trainer.accelerator.process_index == 0:
            remedies.report()
        return result


def _remedied(asked: ScriptRun, trainer: Any) -> Applied:
    try:
        return apply(trainer, asked.remedies)
    except ConfigError as error:
        if asked.pilot is None:
            raise
        _write(asked.pilot, trainer, {"refused": str(error)})
        raise Stopped from error


def _write_pilot(asked: ScriptRun, trainer: Any, seen: dict[str, Any]) -> None:
    if asked.steps is not None:
        seen["steps"] = min(seen["steps"], asked.steps)
    if asked.pilot is not None:
        _write(asked.pilot, trainer, seen)


def _write(path: Path, trainer: Any, seen: dict[str, Any]) -> None:
    if trainer.accelerator.process_index == 0:
        write_atomically(path, [json.dumps(seen, indent=2)])


@contextmanager
def _replaced(owner: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)
