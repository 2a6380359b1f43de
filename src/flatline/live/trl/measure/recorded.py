"""The batch as a trace of one step, recorded by the same hooks that record a whole run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from flatline.errors import ConfigError
from flatline.live.batch import to_numpy
from flatline.live.hooks import Patch
from flatline.live.measure.played import Played, Recorded
from flatline.live.measure.untouched import random_numbers
from flatline.live.trl.engine import Rollouts
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.measure.scoring import first_rows, play, trained_logps
from flatline.live.trl.recorder.attach import attach
from flatline.live.trl.recorder.heard import ROLLOUT
from flatline.rollout.engine import Engine
from flatline.rollout.record import Rollout
from flatline.trace.writer import MemorySink


def record(
    trainer: GrpoTrainer, rollouts: Rollouts | None, correct: str | None, gold: str | None
) -> Recorded:
    """Sample the first batch, pass it through the loss, and keep all of it."""
    sink = MemorySink()
    attachment = attach(trainer, sink, correct=correct, gold=gold)
    try:
        with _noting(rollouts) as seen:
            played = play(trainer, first_rows(trainer))
        _refuse_other_rows(played)
        logps_BT = trained_logps(trainer, played.inputs)
        row = attachment.work("end_step", trainer.state.global_step + 1)
        if row is not None:
            attachment.work("write_step", row)
    finally:
        attachment.detach()
    return Recorded(played, logps_BT, sink.trace(), seen)


def _refuse_other_rows(played: Played) -> None:
    """An error where a subclass leaves out rows of what was generated, or exchanges them."""
    numbers = played.inputs.get(ROLLOUT)
    if numbers is None:
        return
    rows, trained = len(played.rows), to_numpy(numbers)
    if len(trained) == rows and (np.diff(trained) == 1).all():
        return
    left_out = rows - len(np.unique(trained))
    raise ConfigError(
        f"This trainer trains other rows than it generates: of {rows}, {left_out} are left out or "
        "replaced by copies of others, or they are in another order.\n"
        "A checkup compares each row with what was generated for it, and would take that for a "
        "defect.\n"
        'Record the training instead: `flatline.attach(trainer, "runs/x")`, then '
        "`flatline diagnose runs/x`."
    )


def in_force(engine: Engine) -> dict[str, Any]:
    """Sampling and limits of the engine."""
    parts = (engine.sampling, engine.limits)
    return {name: getattr(part, name) for part in parts for name in part.__slots__}


@contextmanager
def engine_at_hand(rollouts: Rollouts | None, trainer: GrpoTrainer) -> Iterator[None]:
    """Our engine, made if the trainer samples with it, and afterwards unmade. Where it cannot be
    made, the first play says why."""
    its_own = getattr(trainer, "rollout_func", None) is rollouts
    if rollouts is None or not its_own:
        yield
        return
    before, same_numbers = dict(vars(rollouts)), random_numbers()
    with suppress(Exception), rollouts.playing(trainer):
        pass
    same_numbers()
    try:
        yield
    finally:
        vars(rollouts).clear()
        vars(rollouts).update(before)


@contextmanager
def _noting(rollouts: Rollouts | None) -> Iterator[dict[str, Any]]:
    """What is in force whenever the engine plays."""
    seen: dict[str, Any] = {}
    if rollouts is None:
        yield seen
        return
    patches: list[Patch] = []

    def noting(ready: Callable[[], Engine]) -> Engine:
        engine = ready()

        def noted(play: Callable[..., list[Rollout]], *args: Any, **kwargs: Any) -> list[Rollout]:
            seen.update(in_force(engine))
            return play(*args, **kwargs)

        patches.append(Patch(engine, "play", noted))
        return engine

    try:
        with Patch(rollouts, "_ready_engine", noting):
            yield seen
    finally:
        for patch in reversed(patches):  # an engine that holds itself would hold its memory
            patch.undo()
