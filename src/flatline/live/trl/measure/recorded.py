"""The batch as a trace of one step, recorded by the same hooks that record a whole run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from flatline.errors import ConfigError
from flatline.live.batch import Padded, to_numpy
from flatline.live.hooks import Patch
from flatline.live.measure.played import Played, Recorded
from flatline.live.restore.numbers import random_numbers
from flatline.live.trl.engine import Rollouts
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.measure.scoring import first_rows, play, trained_logps
from flatline.live.trl.recorder.attach import attach
from flatline.live.trl.recorder.heard import ROLLOUT
from flatline.rollout.engine import Engine
from flatline.rollout.record import Rollout
from flatline.trace import Trace
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
    trace = sink.trace()
    if _found_elsewhere(played, trace):
        raise _other_rows(len(played.rows), 0)
    return Recorded(played, logps_BT, trace, seen)


def _refuse_other_rows(played: Played) -> None:
    """An error where a subclass leaves out rows of what was generated, or exchanges them."""
    numbers, rows = played.inputs.get(ROLLOUT), len(played.rows)
    handed_on = len(played.inputs["completion_ids"])
    if handed_on != rows:
        raise _other_rows(rows, max(rows - handed_on, 0))
    if numbers is None:
        return
    trained = to_numpy(numbers)
    if len(trained) != rows or (np.diff(trained) != 1).any():
        raise _other_rows(rows, rows - len(np.unique(trained)))


def _found_elsewhere(played: Played, trace: Trace) -> bool:
    """Whether rows were recorded as they were sampled though the batch has others in their places:
    a subclass put them in another order, with all that belongs to them but their numbers."""
    table, batch = trace.rollouts, Padded(played.inputs)
    if "as_sampled" not in table or not (table["as_sampled"] == 1).all():
        return False
    tokens = trace.tokens()
    lengths = np.bincount(tokens.row, minlength=len(tokens.rollout_rows))
    places = table["rollout"][tokens.rollout_rows].astype(int)
    each = zip(places - places.min(), np.split(tokens.ids, np.cumsum(lengths)[:-1]), strict=True)
    return not all(np.array_equal(batch["completion_ids"][at, : len(ids)], ids) for at, ids in each)


def _other_rows(rows: int, left_out: int) -> ConfigError:
    return ConfigError(
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
