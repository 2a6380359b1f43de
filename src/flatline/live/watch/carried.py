"""A hidden state that a sampler hands on from one batch to the next.

A recurrent policy begins each sequence with an empty state, in sampling and in training. A sampler
that keeps its state in an object and never clears it samples from another policy than is trained.
"""

from collections.abc import Callable

import torch

from flatline.live.watch.gradient import Inputs


class Carried:
    """Counts steps in which every sequence was sampled from a state that an earlier pass left, and
    trained from none."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._steps = 0
        self._clear()

    def given(self, inputs: Inputs | None) -> None:
        """The model is called."""
        if inputs is None:
            return
        if torch.is_grad_enabled():
            self._trained |= not inputs.state_of_old
            self._stateful |= inputs.state_of_old
        else:
            self._began |= not inputs.state_of_old
            self._went_on |= inputs.state_of_old

    def step(self) -> None:
        """The optimizer has stepped."""
        carried = self._went_on and not self._began and self._trained and not self._stateful
        before, self._steps = self._steps, self._steps + 1 if carried else 0
        if before or carried:
            self._tell(steps=self._steps)
        self._clear()

    def _clear(self) -> None:
        self._began = self._went_on = self._trained = self._stateful = False
