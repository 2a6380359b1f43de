"""What a loss does to every token, read from the gradient at the logits.

A loss that is a weighted sum of log-probs, `sum_t w_t * -log p(y_t)`, has at position t the
gradient `w_t * (p - onehot(y_t))`. So the weight is `-g_y / (1 - p_y)`, the label is where the
gradient is largest, and a token without loss has a gradient of exactly 0. Where the loss divides
logits by a temperature T first, the logarithm of the gradient lies on a line of slope 1 / T over
the logits of all other tokens. What fits none of this is an entropy bonus, a divergence over the
whole vocabulary, or logits that are changed in another way behind the head.

Of the logits, no more than `PROBE` elements are kept from the forward pass to the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PROBE = 2**22
"""Logits kept of one pass, for the temperature and what is no push on a token: 16 MB."""
POSITIONS = 64
"""Positions that these are taken from, at most."""
LATE = 16
"""Tokens before the end of a row among which these are."""
LINE = 8
"""Most likely other tokens of a position through which the line is laid."""
SPAN = 0.5
"""Nats that their logits must span: a line through one point has every slope."""
STRAIGHT = 0.02
"""Nats by which they may lie off the line; gradients in 16 bits have an error of 0.004."""
HALF = 0.5
"""Of the largest gradient at a position: a label has all of it, but for rounding and small terms
of another form."""
SURELY = 0.9
"""Of the largest gradient, below which that of a token is surely not the largest. Where the model
is certain of another token than the one that is pushed, both have nearly the same."""
CERTAIN = 1e-4
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
    state_of_old: bool = False
    """Whether it was handed a state that is another one for each row, as only a pass leaves it."""


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
        self.logp = _logprobs(logits, self.label, 1.0)
        self.scored = self.logp if temperature == 1 else _logprobs(logits, self.label, temperature)
        """The same at the temperature of the loss, as far as that was known then."""
        most = min(POSITIONS, max(1, PROBE // vocabulary))
        self._places = _late(inputs, self.first, width, most)
        self._kept = logits.reshape(-1, vocabulary)[self._places].float()
        self.trained: Tensor | None = None
        """Whether the loss has a gradient at each position; None before the backward pass."""
        self.cleared = False
        """Whether what it left at the weights was cleared before a step."""

    def hear(self, gradient: Tensor) -> None:
        """Take what is needed of the gradient at the logits."""
        if self.trained is not None:  # a graph that is kept may be walked through twice
            return
        peak = torch.cat([part.abs().amax(-1) for part in _parts(gradient)]).float()
        self.trained = peak != 0
        self.label[:, -1] = gradient[:, -1].abs().argmax(-1)
        at_label = _at(gradient, self.label)
        self.elsewhere = self.trained & (at_label.abs() < HALF * peak)
        """Whether another token than the next one is pushed."""
        given = _at(gradient, self.inputs.ids[:, self.first :]).abs()
        self.itself = self.elsewhere & (given >= HALF * peak)
        """Whether that is the token which the model was given there."""
        next_one, apart = at_label.abs(), given != at_label.abs()
        self.pushes_given = self.trained & apart & (given >= peak) & (next_one < SURELY * peak)
        """Whether it is surely that one: who is pushed has the largest gradient of all."""
        self.pushes_next = self.trained & apart & (next_one >= peak) & (given < SURELY * peak)
        rest = -torch.expm1(self.scored)
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
        """1 / temperature at some positions; NaN where nothing can be determined."""
        p = _scaled(logits, self.temperature).softmax(-1)
        left = 1 - p.gather(1, label)
        push = -gradient.gather(1, label) / left
        off = gradient - (push * p).scatter_add(1, label, -push)
        known = (left > CERTAIN) & (size.amax(-1, keepdim=True) > 0)
        squares = torch.stack([off.square().sum(-1), gradient.square().sum(-1)])
        self.parts = torch.where(known[:, 0], squares, 0.0).sum(1)
        """Of the squared gradient at some positions: what is no push on a token, and all of it."""
        self.examined = known.sum()
        """How many positions these are."""
        every = logits.log_softmax(-1)
        self.entropy = -(every.exp() * every).sum(-1)[size.amax(-1) > 0]
        """At some positions with a gradient."""
        del self._kept


def _parts(logits: Tensor) -> Sequence[Tensor]:
    """A few rows at a time: what is computed on the way is as large as they are."""
    return torch.split(logits, max(1, PROBE // logits[0].numel()))


def _logprobs(logits: Tensor, label: Tensor, temperature: float) -> Tensor:
    """Of each label; NaN where it is not known."""
    parts = _parts(logits)
    known = torch.split(label.clamp_min(0), len(parts[0]))
    found = [
        _at(_scaled(part.float(), temperature).log_softmax(-1), at)
        for part, at in zip(parts, known, strict=True)
    ]
    return torch.cat(found).masked_fill(label < 0, torch.nan)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """A temperature of 1 costs nothing."""
    return logits if temperature == 1 else logits / temperature


def _at(values: Tensor, label: Tensor) -> Tensor:
    return values.gather(2, label[..., None])[..., 0].float()


def _line(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Slope of the line through the points of each row, and how far off it the farthest lies."""
    across, up = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    slope = (across * up).sum(1) / across.square().sum(1)
    return slope, (up - slope[:, None] * across).abs().amax(1)


def _late(inputs: Inputs, first: int, width: int, most: int) -> Tensor:
    """Places near the end of every row, where completions stand; no random number is drawn."""
    ids, seen = inputs.ids, inputs.attended
    at = torch.arange(min(ids.shape[0] * width, most), device=ids.device)
    row = at % len(ids)
    back = (at + 5 * (at // len(ids))) % LATE
    order = torch.arange(ids.shape[1], device=ids.device)
    last = torch.full_like(row, width - 1)
    if seen is not None:
        last = ((seen != 0) * order).amax(1)[row] - first
    return row * width + (last - back).clamp_min(0)
