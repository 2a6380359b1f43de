"""What the steps of an optimizer do to the weights of a model."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flatline.live.weights import Census, Looked

UPHILL = 3
"""Steps in a row up the gradient before that is said; momentum may do one or two."""
CLIPPED = 1e-3
"""Share by which a gradient must be shorter at the step than after the last backward pass."""
SAME = 0.01
"""Share by which two clipped gradients may differ and still have been clipped to one norm."""


WITNESSES = 3
"""Smallest tensors with a gradient by which it is seen that gradients were cleared."""


class Stepping:
    """Listens around every step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        note: Callable[[str], None],
        settle: Callable[..., None],
    ) -> None:
        """`note` is told what a person must know, `settle` what a setting of the run is."""
        self._model, self._optimizer = model, optimizer
        self._note, self._settle = note, settle
        self.done = 0
        """Steps until now."""
        self.backward = False
        """Whether any gradient was computed."""
        self._census: Census | None = None
        self._norms: dict[int, Tensor] = {}
        self._grown: dict[int, Tensor] = {}
        """Weights that got a gradient since the last step."""
        self._changed = 0
        """How often weights were changed until the last backward pass began."""
        self._bare: set[str] | None = None
        """Tensors that never had a gradient."""
        self._clip: float | None = None
        self._clips_alike = True
        self._used: list[Tensor] = []
        """Some weights whose gradient the last step used."""
        self._keeps = False
        """Whether a backward pass after it added to that gradient."""
        self._uphill = 0
        self._since = time.perf_counter()
        self._facts: dict[str, Any] = {}

    def accumulated(self, weight: Tensor) -> None:
        """A backward pass has added to the gradient of a weight."""
        if weight.grad is not None:
            self.backward = True
            self._norms[id(weight)] = torch.linalg.vector_norm(weight.grad)
            self._grown[id(weight)] = weight

    def cleared(self) -> Tensor | None:
        """A backward pass begins: whether what earlier ones left since the last step was cleared,
        with nothing done to the weights in between. None where there was nothing to clear."""
        if not self._grown:
            self._keeps |= bool(self._used) and all(map(_has_gradient, self._used))
        before, self._changed = self._changed, sum(w._version for w in self._model.parameters())
        if before != self._changed or not self._grown:
            return None
        some = sorted(self._grown.items(), key=lambda pair: pair[1].numel())[:WITNESSES]
        had = torch.stack([self._norms[key].float().cpu() for key, _ in some])
        grads = [weight.grad for _, weight in some]
        gone = [grad is None or not bool(grad.any()) for grad in grads]
        return had.amax() > 0 if all(gone) else None

    def as_left(self) -> bool:
        """Whether gradients are those of the last backward pass, but for a factor: who gathers them
        elsewhere puts others in their place."""
        pairs = [(self._norms[key], weight.grad) for key, weight in self._grown.items()]
        if any(grad is None for _, grad in pairs):
            return False
        ratios = [
            float(torch.linalg.vector_norm(grad)) / float(norm)
            for norm, grad in pairs
            if grad is not None and float(norm) > 0
        ]
        return bool(ratios) and max(ratios) - min(ratios) <= CLIPPED * max(ratios)

    def before(self, *, scaled: bool) -> None:
        """The optimizer is about to step; gradients were `scaled` until just now, or not."""
        if self._census is None:
            self._census = Census(self._model, self._optimizer)
            self._say_left_out()
        if self._census.is_due(self.done + 1):
            self._census.before_step(readable=True)
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._facts = {"grad_norm": self._norm(self._census, scaled), "learning_rate": rates[0]}
        several = {f"learning_rate/{at}": rate for at, rate in enumerate(rates)}
        self._facts["metrics"] = several if len(rates) > 1 else {}
        bare = {name for name, weight in self._held() if weight.grad is None}
        self._bare = bare if self._bare is None else self._bare & bare

    def after(self) -> tuple[Looked | None, dict[str, Any]]:
        """The optimizer has stepped: what it did to each tensor, and facts about the step."""
        self.done += 1
        facts, census = self._facts, self._census
        along = None if census is None else census.along_gradient()
        if along is not None:
            facts["metrics"]["along_gradient"] = float(along)
            self._judge(float(along))
        if self._keeps:
            facts["metrics"]["gradients_kept"] = 1.0
        held = {id(weight) for _, weight in self._held()}
        grown = [weight for key, weight in self._grown.items() if key in held]
        self._used, self._keeps = sorted(grown, key=Tensor.numel)[:WITNESSES], False
        now = time.perf_counter()
        facts |= {"time": time.time(), "seconds": now - self._since}
        self._since = now
        self._norms.clear()
        self._grown.clear()
        return (None if census is None else census.after_step(self.done)), facts

    def say_last(self) -> None:
        """What only the end shows."""
        if not self.done:
            seen = "gradients were computed" if self.backward else "no gradient was computed"
            self._note(
                f"The optimizer never stepped while it was watched; {seen}. Watch the optimizer "
                "whose `step()` the loop calls, and close the watch after the loop."
            )
        elif self._bare:
            self._note(
                f"{len(self._bare)} tensors that the optimizer holds never had a gradient, such as "
                f"`{min(self._bare)}`."
            )

    def _held(self) -> list[tuple[str, Tensor]]:
        held = {id(weight) for group in self._optimizer.param_groups for weight in group["params"]}
        return [pair for pair in self._model.named_parameters() if id(pair[1]) in held]

    def _say_left_out(self) -> None:
        held = {id(weight) for _, weight in self._held()}
        named = self._model.named_parameters()
        left = [name for name, w in named if w.requires_grad and id(w) not in held]
        if left:
            self._note(
                f"The optimizer does not hold {len(left)} trainable tensors of the model, such as "
                f"`{left[0]}`: they never change."
            )

    def _norm(self, census: Census, scaled: bool) -> float | None:
        """Of the gradient before it was clipped: as the last backward pass left it."""
        now, known = census.grad_norm(), [norm.float() for norm in self._norms.values()]
        after = None if now is None else float(now)
        if scaled or not known:
            return after
        before = float(torch.stack([norm.to(known[0].device) for norm in known]).norm())
        if after is not None and 0 < after < before * (1 - CLIPPED) < math.inf:
            self._clipped_to(float(f"{after:.3g}"))
        return before

    def _clipped_to(self, norm: float) -> None:
        """A clip by norm leaves every gradient that it shortens with the same one."""
        if self._clip is None:
            self._clip = norm
            self._settle(max_grad_norm=norm)
        elif self._clips_alike and abs(norm - self._clip) > SAME * self._clip:
            self._clips_alike = False
            self._settle(max_grad_norm=None)

    def _judge(self, along: float) -> None:
        self._uphill = self._uphill + 1 if along > 0 else 0
        if self._uphill == UPHILL:
            self._note(
                f"{UPHILL} optimizer steps in a row went up the gradient: they make the loss "
                "larger. Look for `maximize=True`, a negative rate or a loss that is negated twice."
            )


def _has_gradient(weight: Tensor) -> bool:
    return weight.grad is not None and bool(weight.grad.any())
