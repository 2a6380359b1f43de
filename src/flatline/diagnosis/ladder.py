"""The ladder of positive controls (H00): the same setup, a few steps on each of four rewards."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from flatline.config import RunConfig
from flatline.errors import ConfigError, needing
from flatline.hypotheses.base import Finding
from flatline.hypotheses.h00_positive_control import RUNGS, Climb, PositiveControl, Rung

STEPS = 16
"""Optimizer steps of a rung: a healthy lab run has climbed by then."""
HELD_OUT = 192
"""Problems that a rung is judged on."""


def climb_ladder(config: RunConfig, *, on_rung: Callable[[Climb], None] | None = None) -> Finding:
    """Train every rung of the task's ladder and name the first that fails."""
    if config.task not in RUNGS:
        raise ConfigError(f"{config.task} has no ladder.\nThese have: {', '.join(RUNGS)}.")
    climbs = []
    for climb in _climbs(config):
        climbs.append(climb)
        if on_rung:
            on_rung(climb)
    return PositiveControl().judge(climbs)


def _climbs(config: RunConfig) -> Iterator[Climb]:
    with tempfile.TemporaryDirectory(prefix="flatline-ladder-") as folder:
        for rung in RUNGS[config.task]:
            climb = _climb(config, rung, Path(folder) / rung.part)
            yield climb
            if climb.outcome == "failed":  # the rungs above need all that this one does
                return


def _climb(config: RunConfig, rung: Rung, folder: Path) -> Climb:
    with needing("The ladder"):
        from flatline.training.run import train  # brings torch

    result = train(
        replace(
            config,
            reward=rung.part,
            max_steps=STEPS,
            eval_limit=HELD_OUT,
            eval_steps=0,
            output_dir=str(folder),
            report_to="none",
            resume_from_checkpoint=None,
        )
    )
    before, after = result.scores[0], result.scores[-1]
    return Climb(rung=rung, before=before.parts[rung.part], gain=after.since(before, rung.part))
