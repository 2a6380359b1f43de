"""What a loss does to every token, read from the gradient at the logits.

A loss that is a weighted sum of log-probs, `sum_t w_t * -log p(y_t)`, has at position t the
gradient `w_t * (p - onehot(y_t))`. So the weight is `-g_y / (1 - p_y)`, the label is where the
gradient is largest, and a token without loss has a gradient of exactly 0. Where the loss divides
logits by a temperature T first, the logarithm of the gradient lies on a line of slope 1 / T over
the logits of all other tokens. What fits none of this is an entropy bonus, a divergence over the
whole vocabulary, or logits that are changed in another way behind the head.

Of the logits, no more than `PROBE` elements are kept from the forward pass to the gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

PROBE = 2**22
"""Logits kept of one pass, for the temperature and what is no push on a token: 16 MB."""
POSITIONS = 128
"""Positions that these are taken from, at most."""
LINE = 8
"""Most likely other tokens of a position through which the line is laid."""
SPAN = 0.5
"""Nats that their logits must span: a line through one point has every slope."""
STRAIGHT = 0.02
"""Nats by which they may lie off the line; gradients in 16 bits have an error of 0.004."""
HALF = 0.5
"""Of the largest gradient at a position: a label has all of it, but for rounding and small terms
of another form."""
CERTAIN = 1e-5
"""Probability of all other tokens below which a weight would be rounding divided by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the model was given."""

    ids: Tensor
    """Token ids: row, position."""
    attended: Tensor | None
    """Attention mask of the same shape; None where there was none."""
    mask_is_odd: bool = False
    """Whether there was one that is no flag per token."""
    cached: int | None = None
    """Tokens that the model had seen before; None without a cache, -1 where it does not say."""


class Pass:
    """One forward pass that a gradient may come back through."""

    def __init__(self, inputs: Inputs, logits: Tensor, temperature: float) -> None:
        rows, width, vocabulary = logits.shape
        self.inputs, self.temperature = inputs, temperature
        self.half = logits.dtype == torch.float16
        """Whether gradients are scaled on their way, so that they do not vanish."""
        self.first = inputs.ids.shape[1] - width
        """Input position of the first logits: some models build only the last ones."""
        labels = inputs.ids[:, self.first + 1 :]
        self.label = torch.cat([labels, labels.new_full((rows, 1), -1)], dim=1)
        """The next token; behind the last input it is known from the gradient alone."""
        scored = [_scored(*pair, temperature) for pair in zip(logits, self.label, strict=True)]
        self.logp, self.scaled, self.entropy = (
            torch.stack(part) for part in zip(*scored, strict=True)
        )
        self._places = _spread(rows * width, min(POSITIONS, max(1, PROBE // vocabulary)))
        self._kept = logits.reshape(-1, vocabulary)[self._places].float()
        self.trained: Tensor | None = None
        """Whether the loss has a gradient at each position; None before the backward pass."""

    def hear(self, gradient: Tensor) -> None:
        """Take what is needed of the gradient at the logits."""
        if self.trained is not None:  # a graph that is kept may be walked through twice
            return
        found = [_pushed(row, label) for row, label in zip(gradient, self.label, strict=True)]
        self.pushed, self.peak, at_label = (torch.stack(part) for part in zip(*found, strict=True))
        self.label = torch.where(self.label < 0, self.pushed, self.label)
        """The last one is taken from the gradient."""
        self.trained = self.peak != 0
        self.elsewhere = self.trained & (at_label.abs() < HALF * self.peak)
        """Whether another token than the next one is pushed."""
        rest = -torch.expm1(self.scaled)
        self.weight = torch.where(rest > CERTAIN, -self.temperature * at_label / rest, torch.nan)
        """How much the loss falls for each nat that the token becomes more likely."""
        self._examine(gradient.reshape(-1, gradient.shape[-1])[self._places].float())

    def _examine(self, gradient: Tensor) -> None:
        logits, size = self._kept, gradient.abs()
        label = size.argmax(-1, keepdim=True)
        others = logits.scatter(1, label, -torch.inf).topk(min(LINE, logits.shape[1] - 1))
        height = size.gather(1, others.indices).log()
        slope, off = _line(others.values, height)
        wide = (others.values[:, 0] - others.values[:, -1]) > SPAN
        self.slopes = torch.where(wide & (off < STRAIGHT), slope, torch.nan)
        """1 / temperature at some positions; NaN where nothing can be told."""
        p = (logits / self.temperature).softmax(-1)
        push = -gradient.gather(1, label) / (1 - p.gather(1, label)).clamp_min(CERTAIN)
        expected = (push * p).scatter_add(1, label, -push)
        self.parts = torch.stack([(gradient - expected).square().sum(), gradient.square().sum()])
        """Of the squared gradient at some positions: what is no push on a token, and all of it."""
        del self._kept


def _scored(logits: Tensor, label: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each label, the same at the temperature of the loss, and entropies; row by row,
    so that no second copy of all logits is made."""
    known = label.clamp_min(0)[:, None]
    every = logits.float().log_softmax(-1)
    entropy = -(every.exp() * every).sum(-1)
    logp = every.gather(1, known)[:, 0]
    scaled = logp
    if temperature != 1:
        scaled = (every / temperature).log_softmax(-1).gather(1, known)[:, 0]
    return logp.masked_fill(label < 0, torch.nan), scaled.masked_fill(label < 0, torch.nan), entropy


def _pushed(gradient: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The token with the largest gradient, its size, and the gradient of the label."""
    found = gradient.abs().max(-1)
    known = torch.where(label < 0, found.indices, label)
    return found.indices, found.values.float(), gradient.gather(1, known[:, None])[:, 0].float()


def _line(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Slope of the line through the points of each row, and how far off it the farthest lies."""
    across, up = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    slope = (across * up).sum(1) / across.square().sum(1)
    return slope, (up - slope[:, None] * across).abs().amax(1)


def _spread(size: int, most: int) -> Tensor:
    """Places at equal distances, so that no random number is drawn."""
    return torch.linspace(0, size - 1, min(size, most)).round().long()
