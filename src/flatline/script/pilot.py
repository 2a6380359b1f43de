"""A look at a script before an experiment with it: what it costs, and what would make it worthless.

It builds the trainer, looks at it with a checkup, takes a step or two, and writes down what
`flatline investigate --script` must know before hours are spent.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import TrainerCallback, set_seed

from flatline.diagnosis.checkup import checkup
from flatline.live.hooks import Patch
from flatline.remedies import Applied
from flatline.script.heldout import Row, paid

STEPS = 2
"""Optimizer steps of a pilot; the first one pays for everything that is made once."""
BATCHES = 2
"""On which the gradient with a remedy is held against the one without."""


class EndAfter(TrainerCallback):  # type: ignore[misc]
    """Ends a training after so many steps, and times them. The schedule stays that of the whole."""

    def __init__(self, steps: int) -> None:
        self.planned = 0
        self.seconds: list[float] = []
        self._steps, self._begun = steps, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.planned = state.max_steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begun)
        if state.global_step >= self._steps:
            control.should_training_stop = True


class Pilot:
    """One look at one arm."""

    def __init__(
        self, trainer: Any, rows: Sequence[Row], remedies: Applied, measured_with: Sequence[str]
    ) -> None:
        self._trainer, self._rows = trainer, rows
        self._remedies, self._measured_with = remedies, measured_with
        self._drawn = ""

    def look(self, train: Callable[[], Any]) -> dict[str, Any]:
        """The checkup, the first steps, an evaluation, and both gradients of the same batches."""
        trainer = self._trainer
        report = checkup(trainer)
        end = EndAfter(STEPS)
        trainer.add_callback(end)
        with Patch(trainer, "_generate_and_score_completions", self._heard):
            train()
        begun = time.perf_counter()
        if self._rows:
            paid(trainer, self._rows, self._measured_with)
        return {
            "steps": end.planned,
            "seconds_per_step": min(end.seconds, default=0.0),
            "evaluation_seconds": time.perf_counter() - begun,
            "held_out_rows": len(self._rows),
            "drawn": self._drawn,
            "processes": int(trainer.accelerator.num_processes),
            "findings": [finding.to_json() for finding in report.findings],
            "gradient": compared(trainer, self._remedies) if self._remedies.tallies else [],
            "acted": {code: one.acted for code, one in self._remedies.tallies.items()},
        }

    def _heard(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What is drawn first tells whether a seed reaches the script."""
        batch = generate(*args, **kwargs)
        if not self._drawn:
            ids = [batch[name] for name in ("prompt_ids", "completion_ids")]
            drawn = b"".join(one.cpu().numpy().tobytes() for one in ids)
            self._drawn = hashlib.sha256(drawn).hexdigest()
        return batch


def compared(trainer: Any, remedies: Applied) -> list[dict[str, float]]:
    """Cosine and length of the remedied gradient against the plain one, batch by batch.

    The remedies are undone by it, and the trainer is not to be trained after it.
    """
    batches = list(itertools.islice(trainer.get_train_dataloader(), BATCHES))
    mended = [_gradient(trainer, batch, seed) for seed, batch in enumerate(batches)]
    remedies.undo()
    plain = [_gradient(trainer, batch, seed) for seed, batch in enumerate(batches)]
    found = []
    for a, b in zip(mended, plain, strict=True):
        lengths = float(a.norm()), float(b.norm())
        if not all(lengths):
            continue
        cosine = float(a @ b) / (lengths[0] * lengths[1])
        found.append({"cosine": cosine, "length": lengths[0] / lengths[1]})
    return found


def _gradient(trainer: Any, batch: Any, seed: int) -> torch.Tensor:
    """Of one pass over rollouts that are sampled again, with the same random numbers."""
    set_seed(seed)
    trainer._step, trainer._buffered_inputs = 0, None
    trainer.model.zero_grad()
    trainer.training_step(trainer.model_wrapped, batch, None)
    held = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
    return torch.cat([one.detach().double().flatten().cpu() for one in held])
