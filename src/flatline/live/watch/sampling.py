"""Which tokens were sampled, behind what, and how likely they were: by listening to the model.

A generation is a chain of passes: each has one token more than the last, given whole or behind a
cache. That token was drawn from the last logits of the pass before, so its log-prob is known. The
token that ends a generation is never given back to the model; the logits that it was drawn from are
kept until a pass that trains shows which one it was.
"""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from flatline.live.watch.drawn import Drawn, Fits
from flatline.live.watch.gradient import Inputs

TAILS = 2**24
"""Logits of last tokens that are kept: 64 MB. Of older generations their log-prob is unknown."""


class Tail:
    """The logits that the last tokens of a generation were drawn from."""

    def __init__(self, logits: Tensor | None, fits: Fits | None = None) -> None:
        self.logits = logits
        self.fits = fits
        """What the tokens of the generation say of the temperature; None once it is counted."""

    def logp(self, row: int, token: int) -> float:
        """Of one of its tokens; NaN where the logits are gone."""
        logits = self.logits
        if logits is None:
            return np.nan
        return float(logits[row].float().log_softmax(-1)[token])


@dataclass(eq=False, slots=True, kw_only=True)
class Sample:
    """One sampled sequence."""

    prompt: np.ndarray
    """Token ids that it was sampled behind, without padding on the left."""
    ids: np.ndarray
    """Sampled ids that were given back to the model, the end included."""
    logps: np.ndarray
    """Their log-probs."""
    ended: bool
    """Whether the last of them is an end token."""
    version: int
    """Optimizer steps behind the weights that sampled it."""
    tail: Tail
    row: int
    """Its row in the tail."""
    own: bool = False
    """Whether a loop of somebody's own fed its tokens: some may be put there and not drawn."""
    finish: str | None = None
    """Why it ended, where the sampler says so: `ids` are then all that it drew."""
    reward: float | None = None
    parts: dict[str, float] | None = None
    gold: str | None = None
    group: tuple[int, object] | None = None
    """As the loop gave it: number of the call and name of the group."""
    place: tuple[int, int] | None = None
    """Step and number of its rollout in the trace."""
    tokens_written: bool = False

    @property
    def key(self) -> tuple[int, object]:
        """Of the group that it is compared in: as it was given, else all of one prompt."""
        return self.group or (self.version, self.prompt.tobytes())


@dataclass(slots=True, kw_only=True)
class _Open:
    """A generation that may go on."""

    prompt: Tensor
    attended: Tensor | None
    version: int
    logits: Tensor
    """Of the last token, one row a sequence."""
    cached: bool
    """Whether it began with an empty cache."""
    own: bool = False
    """Whether it is not transformers that feeds what it draws."""
    fed: list[Tensor] = field(default_factory=list)
    logps: list[Tensor] = field(default_factory=list)
    fits: list[Tensor] = field(default_factory=list)
    """Of each token that was looked at, from the first one on."""

    def whole(self) -> Tensor:
        return torch.cat([self.prompt, *(token[:, None] for token in self.fed)], dim=1)

    def continued_by(self, inputs: Inputs) -> Tensor | None:
        """The tokens that are new in a pass; None where it does not go on with this generation."""
        ids, length = inputs.ids, self.prompt.shape[1] + len(self.fed)
        rows = self.logits.shape[0]
        if inputs.cached:
            # One prompt may be read once and sampled from many times. Several tokens behind a cache
            # that does not say its length are a new prompt.
            fits = inputs.cached == length or (inputs.cached == -1 and ids.shape[1] == 1)
            return ids if fits and rows in (1, ids.shape[0]) else None
        if self.forgets(inputs):
            return ids
        if ids.shape[0] != rows or ids.shape[1] <= length:
            return None
        return ids[:, length:] if torch.equal(ids[:, :length], self.whole()) else None

    def forgets(self, inputs: Inputs) -> bool:
        """Whether one token is given behind a cache that should hold the prompt and is empty."""
        alone = self.cached and inputs.cached == 0 and self.prompt.shape[1] > 1
        return alone and inputs.ids.shape == (self.logits.shape[0], 1)

    def feed(self, token: Tensor, drawn: Drawn) -> None:
        rows = len(token)
        if len(self.logits) < rows:
            self.logits, self.prompt = self.logits.expand(rows, -1), self.prompt.expand(rows, -1)
            self.attended = None if self.attended is None else self.attended.expand(rows, -1)
        logits = self.logits.float()
        fit = drawn.look(logits, token)
        if fit is not None:
            self.fits.append(fit)
        self.logps.append(logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(-1))
        self.fed.append(token.clone())


class Sampling:
    """Follows generations."""

    def __init__(self, ends: frozenset[int], done: Callable[[list[Sample]], None]) -> None:
        """`ends` are the ids that end a sequence; `done` is told of every generation."""
        self._ends, self._done = ends, done
        self._open: _Open | None = None
        self._drawn = Drawn()
        self._tails: deque[Tail] = deque()
        self.lost = False
        """Whether a generation was met that cannot be followed."""
        self.blind = False
        """Whether one was met that sees no token but the last."""

    def hear(self, inputs: Inputs, logits: Tensor, version: int) -> None:
        """One pass of the model."""
        last = logits[:, -1].detach().clone()
        fresh = self._open.continued_by(inputs) if self._open else None
        if self._open and fresh is not None and fresh.shape[1] == 1:
            self.blind |= self._open.forgets(inputs)
            self._open.own |= not (self._open.fed or _is_generate())
            self._open.feed(fresh[:, 0], self._drawn)
            self._open.logits = last
            return
        context, attended = inputs.ids, inputs.attended
        if self._open and fresh is not None:  # what a tool said, in one piece
            context, attended = torch.cat([self._open.whole(), fresh], dim=1), self._open.attended
        self.close()
        begins = inputs.cached == -1 and inputs.ids.shape[1] > 1
        if inputs.cached and fresh is None and not begins:
            self.lost = True
            return
        self._open = _Open(
            prompt=context,
            attended=attended,
            version=version,
            logits=last,
            cached=inputs.cached == 0,
        )

    def close(self) -> None:
        """What is open does not go on. A pass that nothing was sampled from is no generation."""
        now, self._open = self._open, None
        if now is None or not now.fed:
            return
        tail = Tail(now.logits)
        self._tails.append(tail)
        while len(self._tails) > 1 and sum(map(_size, self._tails)) > TAILS:
            self._tails.popleft().logits = None
        self._done(self._samples(now, tail))

    def _samples(self, now: _Open, tail: Tail) -> list[Sample]:
        prompts, ids = now.prompt.cpu().numpy(), torch.stack(now.fed, dim=1).cpu().numpy()
        logps = torch.stack(now.logps, dim=1).cpu().numpy()
        ends = np.isin(ids, list(self._ends))
        length = np.where(ends.any(1), ends.argmax(1) + 1, ids.shape[1])
        before = _padding(now.attended, len(prompts))
        tail.fits = _fits(now, length)
        return [
            Sample(
                prompt=prompts[row, before[row] :].astype(np.int32),
                ids=ids[row, : length[row]].astype(np.int32),
                logps=logps[row, : length[row]],
                ended=bool(ends[row].any()),
                version=now.version,
                tail=tail,
                row=row,
                own=now.own,
            )
            for row in range(len(ids))
        ]


def _fits(now: _Open, length: np.ndarray) -> Fits | None:
    """Of the tokens of all rows until these end."""
    if not now.fits:
        return None
    every = torch.stack(now.fits).double().cpu().numpy()
    drawn = np.arange(len(every))[:, None] < length
    return Fits(int(drawn.sum()), every[drawn].sum(0))


def _padding(attended: Tensor | None, rows: int) -> np.ndarray:
    """Tokens at the left of each row that are hidden: those in the middle are no padding."""
    if attended is None:
        return np.zeros(rows, dtype=int)
    seen = attended.cpu().numpy() != 0
    return np.where(seen.any(1), seen.argmax(1), 0)


def _is_generate() -> bool:
    """Whether a `generate` of transformers is what calls the model: it feeds nothing but what it
    drew, and padding behind the end."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("transformers.generation"):
            return True
        frame = frame.f_back
    return False


def _size(tail: Tail) -> int:
    return 0 if tail.logits is None else tail.logits.numel()
