"""Does the reference of a KL term stay behind the policy, or go with it?

A reference may follow slowly (`sync_ref_model`). One that is never as much as a step behind holds
nothing: the KL compares the policy with itself. Some elements of some weights are compared, before
each step of the optimizer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TENSORS, ELEMENTS = 16, 256
"""Weights that are compared, and elements of each."""
NEAR = 0.5
"""Steps that a reference must be behind. One that is synced at every step with a weight of 0.6 for
the policy, TRL's own, is 0.67 steps behind; a frozen one as many as there were."""
FEWEST = 4
"""Steps that tell anything."""


class Anchor:
    """A reference with weights of its own."""

    def __init__(self, trainer: Any, tell: Callable[..., None]) -> None:
        self._tell = tell
        policy, reference = (
            dict(trainer.accelerator.unwrap_model(one).named_parameters())
            for one in (trainer.model, trainer.ref_model)
        )
        names = [name for name, weight in policy.items() if weight.requires_grad]
        alike = [n for n in names if n in reference and reference[n].shape == policy[n].shape]
        chosen = alike[:: max(1, len(alike) // TENSORS)][:TENSORS]
        self._policy = [policy[name] for name in chosen]
        self._reference = [reference[name] for name in chosen]
        self._before: tuple[Tensor, Tensor] | None = None
        self._looked = self._near = self._moved = 0

    def look(self) -> None:
        """Before a step of the optimizer."""
        if not self._policy:
            return
        now = _some(self._policy), _some(self._reference)
        before, self._before = self._before, now
        step = 0.0 if before is None else float((now[0] - before[0]).norm())
        if before is None or step == 0:
            return
        self._looked += 1
        self._near += float((now[0] - now[1]).norm()) <= NEAR * step
        self._moved += not torch.equal(now[1], before[1])
        if self._looked >= FEWEST and self._looked.bit_count() == 1:
            self._tell(looked=self._looked, near=self._near, moved=self._moved)


def anchor_of(trainer: Any, tell: Callable[..., None]) -> Anchor | None:
    """None where no other model is the reference: without a KL, or beside an adapter."""
    return None if getattr(trainer, "ref_model", None) is None else Anchor(trainer, tell)


def _some(weights: list[Tensor]) -> Tensor:
    """Every so many-th element."""
    parts = [weight.detach().flatten() for weight in weights]
    steps = [max(1, len(part) // ELEMENTS) for part in parts]
    return torch.cat([p[::s].float().cpu() for p, s in zip(parts, steps, strict=True)])
