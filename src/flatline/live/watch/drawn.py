"""At which temperature tokens are drawn: from the tokens and the logits that they came from.

A loop divides logits by a temperature where no hook hears it. But each token that it drew is more
likely at one temperature than at another, and over a thousand tokens one of them stands out. What
cuts tokens off (top-p, top-k) looks like a cold sampler; so it is also counted how often a token
comes from the least likely tenth, which at the true temperature is one time in ten.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TEMPERATURES = tuple(round(1.15**power, 3) for power in range(-10, 11))
"""What is tried: from a quarter to four, each 15 % above the last."""
BUDGET = 2**27
"""Logits of a run that are looked at: 900 tokens of a vocabulary of 150 000."""
FEWEST_ROWS = 8
"""Rows of a generation. The token that ends it is not given back to the model and is not seen: of
few rows it would be too many."""
LEAST = 0.1
"""The least likely part of the distribution."""
SURE = 0.8
"""Probability of the most likely token from which on there is no choice."""
EVEN = 0.1
"""How far the weights of tokens may differ inside a row that is not corrected for how it was drawn:
such a correction is the ratio of two probabilities."""


class Drawn:
    """What tokens say of each temperature, until enough was seen."""

    def __init__(self) -> None:
        self._left = BUDGET

    def look(self, logits: Tensor, token: Tensor) -> Tensor | None:
        """For each row and temperature: the log-prob of its token, and where there was a choice,
        how much of what the token stands for lies in the least likely part, and 1; None once enough
        was seen."""
        if self._left <= 0 or len(token) < FEWEST_ROWS:
            return None
        self._left -= logits.numel()
        with torch.no_grad():
            logits = logits.float()
            own = logits.gather(1, token[:, None])
            return torch.stack([_at(logits / one, own / one) for one in TEMPERATURES], 2)


def _at(logits: Tensor, own: Tensor) -> Tensor:
    logps = logits.log_softmax(-1)
    logp = logps.gather(1, (logits == own).float().argmax(1, keepdim=True))[:, 0]
    above = torch.where(logits > own, logps.exp(), 0.0).sum(1)
    share = logp.exp().clamp_min(torch.finfo(logp.dtype).tiny)
    least = ((above + share - (1 - LEAST)) / share).clamp(0, 1)
    in_doubt = logps.amax(1).exp() < SURE
    return torch.stack([logp, least * in_doubt, in_doubt.to(logp.dtype)], 1)


@dataclass(slots=True)
class Fits:
    """What the tokens of one generation, or of many, say together."""

    tokens: int
    summed: np.ndarray
    """Log-probs, tokens in the least likely part, and tokens with a choice, at each temperature."""


class Told:
    """Adds up the generations that are trained, and says what they come to."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._all = Fits(0, np.zeros((3, len(TEMPERATURES))))
        self._rows = self._plain = 0

    def trained(self, fits: list[Fits], whole: list[bool], even: list[bool]) -> None:
        """Generations of which rows are trained for the first time, and for each such row whether
        all that was drawn has a loss, and whether its tokens weigh the same."""
        for one in fits:
            self._all = Fits(self._all.tokens + one.tokens, self._all.summed + one.summed)
        self._rows += len(whole)
        self._plain += sum(a and b for a, b in zip(whole, even, strict=True))
        if fits:
            logps, least, in_doubt = self._all.summed.round(3).tolist()
            self._tell(
                temperatures=TEMPERATURES,
                tokens=self._all.tokens,
                logps=logps,
                least=least,
                in_doubt=in_doubt,
                rows=self._rows,
                plain_rows=self._plain,
            )
