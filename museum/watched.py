"""Releases that lack the methods that `attach` listens to: hooks on model and optimizer instead."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from museum import lab

if TYPE_CHECKING:
    from flatline.diagnosis.report import Report

STEPS = 6
"""A checkup needs more of the trainer than hooks give, so the run alone must tell."""


def watched(build: Callable[[Any], Any], folder: Path) -> "dict[str, Report]":
    """`build` makes a trainer from a reward function, which is heard."""
    import flatline

    watches: list[Any] = []

    def paid(completions: list[Any], **given: Any) -> list[float]:
        values = lab.right(completions, **given)
        watches[0].rewards(values)
        return values

    trainer = build(paid)
    trainer.create_optimizer()
    run = folder / "run"
    tokenizer = trainer.processing_class
    with flatline.watch(trainer.model, trainer.optimizer, run, tokenizer=tokenizer) as one:
        watches.append(one)
        trainer.train()
    return {"diagnose": flatline.diagnose(flatline.Trace.open(run))}
