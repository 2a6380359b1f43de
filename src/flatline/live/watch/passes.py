"""The passes of a step that is under way, and what all of them together say about the loss."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.watch.gradient import Inputs, Pass
from flatline.live.watch.rows import Read

WAITING = 256
"""Passes that wait for an optimizer step; of more, the oldest are forgotten."""
OTHER = 0.05
"""Share of the gradient that is no push on a token from which on it is worth saying."""
TELLING = 4
"""Positions that must agree on a temperature, or show what else the loss does."""
NEARLY_ALL = 0.9
"""Share of the positions at which the loss must push the token that was given there, where that or
the next one surely is pushed. Healthy: none."""
AGREE = 0.02
"""Share by which they may differ; gradients in 16 bits have an error of 0.004."""

SLICED = (
    "The head is called on slices or on selected tokens (a chunked loss), so no logits of whole "
    "rows are built: which tokens are trained, and how hard, is not known of these passes. "
    "Compute the loss from whole logits for a few steps to see it."
)
NO_LOGITS = (
    "What the model returns was not taken for logits: nothing in it is as wide as its table of "
    "tokens. Which tokens are trained, and how hard, is not known."
)
FUSED = (
    "The model is trained without calling its head (a fused loss), so no logits are built: which "
    "tokens are trained, and how hard, is not known. Turn the fused loss off for a few steps to "
    "see it."
)


class Passes:
    """Between two optimizer steps."""

    def __init__(
        self,
        note: Callable[[str], None],
        settle: Callable[..., None],
        unshifted: Callable[..., None] = lambda **_: None,
    ) -> None:
        """`note` is told what a person must know, `settle` what a setting of the run is, and
        `unshifted` where a loss scores tokens by the logits that they stand below."""
        self._note, self._settle, self._unshifted = note, settle, unshifted
        self._steps_unshifted = 0
        self._waiting: deque[Pass] = deque(maxlen=WAITING)
        self._temperature = 1.0
        self._seen_at: float | None = None
        """The temperature that the loss of a step shows, where it does."""
        self._now: Inputs | None = None
        self._heads = 0
        """Calls of the head since the model was given what is in `_now`."""
        self._graph = False
        """Whether gradients could flow when the model was called."""
        self._headless = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def scaled(self) -> bool:
        """Whether gradients are scaled on their way, as float16 asks for."""
        return any(one.half for one in self._waiting)

    def given(self, inputs: Inputs | None) -> None:
        """The model is called."""
        self._count_headless()
        self.given_within(inputs)

    def given_within(self, inputs: Inputs | None) -> None:
        """The same call, as a part deeper in the model is given it."""
        self._now, self._heads, self._graph = inputs, 0, torch.is_grad_enabled()

    @property
    def blind(self) -> bool:
        """Whether the model was called without token ids."""
        return self._now is None

    def built(self, logits: Any) -> Inputs | None:
        """The head is called; returns what the logits are about, where that is known."""
        self._heads += 1
        now = self._now
        if now is None:
            return None
        if logits is None:
            self._note(NO_LOGITS)
            return None
        fits = isinstance(logits, Tensor) and logits.ndim == 3 and len(logits) == len(now.ids)
        if fits and logits.shape[1] <= now.ids.shape[1] and self._heads == 1:
            return now
        self._note(SLICED)
        if self._waiting and self._waiting[-1].inputs is now:
            self._waiting.pop()  # the first slice was taken for the end of the rows
        return None

    def expect(self, inputs: Inputs, logits: Tensor) -> Pass:
        """A gradient may come back through these logits."""
        one = Pass(inputs, logits.detach(), self._temperature)
        self._waiting.append(one)
        return one

    def clear(self) -> None:
        """What all passes until now left at the weights is gone."""
        for one in self._waiting:
            one.cleared = one.trained is not None

    @property
    def any_cleared(self) -> bool:
        return any(one.cleared for one in self._waiting)

    def keep(self) -> None:
        """It is not gone after all."""
        for one in self._waiting:
            one.cleared = False

    def step(self) -> tuple[list[Read], dict[str, float]]:
        """The optimizer has stepped: what was trained, and numbers about the loss."""
        self._count_headless()
        trained = [one for one in self._waiting if one.trained is not None]
        if not trained and self._headless:
            self._note(FUSED)
        self._count_unshifted(trained)
        reads = [Read.of(one) for one in trained if self._is_readable(one)]
        self._waiting.clear()
        self._now, self._headless = None, 0
        return reads, self._numbers(trained)

    def _count_headless(self) -> None:
        self._headless += self._now is not None and self._heads == 0 and self._graph

    def _count_unshifted(self, trained: Sequence[Pass]) -> None:
        """Steps whose loss pushes the tokens that the model was given and not those behind them."""
        whole = [one for one in trained if one.first == 0]
        given, following = (
            (
                sum(int(flags.sum()) for flags in pushed)
                for pushed in zip(
                    *((one.pushes_given, one.pushes_next) for one in whole), strict=True
                )
            )
            if whole
            else (0, 0)
        )
        if len(whole) < len(trained) or given <= NEARLY_ALL * (given + following):
            return
        self._steps_unshifted += 1
        self._unshifted(steps=self._steps_unshifted, positions=given, of=given + following)

    def _is_readable(self, one: Pass) -> bool:
        """Whether the logits are those of the places that they were taken for."""
        assert one.trained is not None
        count, off = int(one.trained.sum()), int(one.elsewhere.sum())
        if off <= count / 2:
            return True
        if one.first > 0:
            self._note(SLICED)
            return False
        rest, whole = one.parts.tolist()
        if rest < OTHER * whole:
            itself = int(one.itself.sum()) > off / 2
            what = "the one that the model was given there" if itself else "another"
            self._note(
                f"At {off} of {count} positions with a gradient the loss does not push the token "
                f"that comes next, but {what}: labels are not shifted by one against the logits."
            )
        return True

    def _numbers(self, trained: Sequence[Pass]) -> dict[str, float]:
        if not trained:
            return {}
        changes = self._changes_temperature(trained)
        seen = {} if self._seen_at is None else {"loss_temperature": self._seen_at}
        return seen if changes else seen | self._other_form(trained)

    def _other_form(self, trained: Sequence[Pass]) -> dict[str, float]:
        rest, whole = torch.stack([one.parts for one in trained]).sum(0).tolist()
        if sum(int(one.examined) for one in trained) < TELLING or whole == 0:
            return {}
        share = math.sqrt(rest / whole)
        if share > OTHER:
            self._note(
                f"{share:.0%} of the gradient at the logits is no push on a token: an entropy "
                "bonus, a divergence over the whole vocabulary, or logits that are changed after "
                "the head. The weights of tokens are inexact by as much."
            )
        return {"gradient_of_other_form": share}

    def _changes_temperature(self, trained: Sequence[Pass]) -> bool:
        """Whether the loss has another temperature than the one that it was read with."""
        slopes = torch.cat([one.slopes for one in trained]).cpu().numpy()
        slopes = slopes[np.isfinite(slopes) & (slopes > 0)]
        self._seen_at = None
        if len(slopes) < TELLING or np.ptp(np.quantile(slopes, [0.25, 0.75])) > AGREE:
            return False
        found = float(1 / np.median(slopes))
        self._seen_at = found = 1.0 if abs(found - 1) < AGREE else round(found, 3)
        if abs(found - self._temperature) < AGREE * found:
            return False
        self._temperature = found
        self._settle(temperature=found)
        self._note(
            f"The loss divides logits by a temperature of {found:g}. Log-probs are recorded at "
            "temperature 1, those of the sampler and those of the trainer."
        )
        return True
