"""The plays of a batch at one table: who sits where, what each has read, one step for all.

Every token is fed exactly once. Rows are ragged; each has its own positions, and a mask that lets a
token see its own conversation up to itself and nothing else.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatline.rollout.kv import SlotCache
from flatline.rollout.record import Author, Turn
from flatline.tasks.base import Episode, Problem

MAX_FEED = 16384
"""Tokens of one forward pass over prompts or observations; more are fed in pieces."""
MAX_PADDING = 256
"""Padding of one such pass on a CPU: a pass more costs about as much as this many tokens. On a GPU
it costs more than all of them, for launching its kernels takes longer than running them."""


class Job(NamedTuple):
    """One episode to play."""

    problem: Problem
    sample: int
    """Which of the problem's plays this is, from 0."""


@dataclass(slots=True, eq=False)
class Play:
    """An episode in progress."""

    job: Job
    index: int
    episode: Episode
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    authors: list[Author] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    sampled: int = 0
    """Model tokens so far: the position in the stream of random numbers."""
    turn_start: int = 0
    """Where the current turn begins in the completion."""
    fed: int = 0
    """Tokens of prompt and completion that are in the cache."""

    def append(self, ids: Sequence[int], authors: Sequence[Author]) -> None:
        """Take what others wrote; the next turn begins behind it."""
        self.completion_ids += ids
        self.authors += authors
        self.logprobs += [0.0] * len(ids)
        self.turn_start = len(self.completion_ids)

    def pending(self) -> list[int]:
        """What the model has not read yet."""
        if self.fed < len(self.prompt_ids):
            return self.prompt_ids[self.fed :] + self.completion_ids
        return self.completion_ids[self.fed - len(self.prompt_ids) :]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


class Table:
    """The plays of a batch and their cache: play i sits at slot i."""

    def __init__(self, model: Any, plays: list[Play], cache: SlotCache | None = None) -> None:
        self.plays = list(plays)
        self.model = model
        self.cache = SlotCache(len(plays), capacity=1) if cache is None else cache
        self.starts: list[int] = []
        """Per slot, the position of the first token that a step feeds."""
        self._steps = 0
        """Tokens fed since."""

    def feed(self) -> Tensor:
        """Feed what the plays have not read yet; logits of the next token of each."""
        self.cache.reserve(max(len(play) for play in self.plays))
        leaders, follows = self._leaders()
        rows = [self.plays[seat].pending() for seat in leaders]
        starts = [self.plays[seat].fed for seat in leaders]
        logits_BV = feed(self.model, self.cache, rows, starts, slots=leaders)
        if len(leaders) < len(self.plays):
            led = [(leaders[i], seat) for seat, i in enumerate(follows)]
            self.cache.copy(*map(list, zip(*[(a, b) for a, b in led if a != b], strict=True)))
            logits_BV = logits_BV[follows]
        self.starts = [len(play) for play in self.plays]
        self._steps = 0
        return logits_BV

    def step(self, ids_B: Tensor) -> Tensor:
        """Feed one token to each of the first plays; logits of their next token."""
        starts = self.starts[: len(ids_B)]
        at_B = torch.tensor(starts, device=ids_B.device) + self._steps
        self._steps += 1
        width = max(starts) + self._steps
        self.cache.reserve(width)
        return forward(self.model, self.cache, ids_B[:, None], at_B[:, None], width=width)

    def seat_first(self, active: set[Play], *, among: int) -> list[int]:
        """Swap the active ones to the front; which of the old seats are now the first ones."""
        seats = range(len(active))
        holes = [i for i in seats if self.plays[i] not in active]
        fills = [i for i in range(len(active), among) if self.plays[i] in active]
        self.cache.copy(fills + holes, holes + fills)
        order = list(seats)
        for hole, fill in zip(holes, fills, strict=True):
            order[hole] = fill
            plays, starts = self.plays, self.starts
            plays[hole], plays[fill] = plays[fill], plays[hole]
            starts[hole], starts[fill] = starts[fill], starts[hole]
        return order

    @torch.inference_mode()
    def keep(self, going: set[Play]) -> None:
        """Let the other plays go; their slots are taken over."""
        holes = [i for i in range(len(going)) if self.plays[i] not in going]
        fills = [i for i in range(len(going), len(self.plays)) if self.plays[i] in going]
        self.cache.copy(fills, holes)
        for hole, fill in zip(holes, fills, strict=True):
            self.plays[hole] = self.plays[fill]
        del self.plays[len(going) :]
        self.cache.keep(len(going))

    def _leaders(self) -> tuple[list[int], list[int]]:
        """Seats of one play for each distinct conversation, and which of these each play follows.

        Plays of a problem start from the same prompt, and many ask the same first question.
        """
        numbers: dict[tuple[int, ...], int] = {}
        seats: list[int] = []
        follows = []
        for seat, play in enumerate(self.plays):
            number = numbers.setdefault((*play.prompt_ids, *play.completion_ids), len(seats))
            if number == len(seats):
                seats.append(seat)
            follows.append(number)
        return seats, follows


def feed(
    model: Any,
    cache: SlotCache,
    rows: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    slots: Sequence[int] | None = None,
) -> Tensor:
    """Feed ragged rows from the given positions; logits after each row's last token.

    Rows are padded on the left, so that all end in the last column, the only one whose logits are
    computed. Padding looks at the first token and writes to the bin.
    """
    slots = range(len(rows)) if slots is None else slots
    padding = MAX_PADDING if model.device.type == "cpu" else MAX_FEED
    passes = _passes([len(row) for row in rows], padding)
    logits = [
        _feed_pass(
            model,
            cache,
            [rows[i] for i in together],
            [starts[i] for i in together],
            [slots[i] for i in together],
        )
        for together in passes
    ]
    order = [i for together in passes for i in together]
    return torch.cat(logits)[np.argsort(order)]


def _passes(lengths: Sequence[int], most_padding: int) -> list[list[int]]:
    """Which rows to feed together: those of about the same length, not too many tokens at once."""
    passes: list[list[int]] = []
    padding = longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding += longest - lengths[i]
        full = passes and (len(passes[-1]) + 1) * longest > MAX_FEED
        if not passes or full or padding > most_padding:
            passes.append([])
            padding, longest = 0, lengths[i]
        passes[-1].append(i)
    return [sorted(together) for together in passes]


def _feed_pass(
    model: Any,
    cache: SlotCache,
    rows: Sequence[Sequence[int]],
    starts: Sequence[int],
    slots: Sequence[int],
) -> Tensor:
    shape = (len(rows), max(map(len, rows)))
    ids_BT = np.zeros(shape, dtype=np.int64)
    at_BT = np.zeros(shape, dtype=np.int64)
    write_BT = np.full(shape, cache.bin)
    for i, row in enumerate(rows):
        n = len(row)
        ids_BT[i, -n:] = row
        at_BT[i, -n:] = write_BT[i, -n:] = starts[i] + np.arange(n)
    for columns in pieces(shape[1], max(1, MAX_FEED // shape[0])):
        ids, at, write = (
            torch.from_numpy(array[:, columns]).to(model.device)
            for array in (ids_BT, at_BT, write_BT)
        )
        width = int(at_BT[:, columns].max()) + 1
        last_BV = forward(model, cache, ids, at, write_BT=write, width=width, slots=slots)
    return last_BV


def forward(
    model: Any,
    cache: SlotCache,
    ids_BT: Tensor,
    at_BT: Tensor,
    *,
    width: int,
    write_BT: Tensor | None = None,
    slots: Sequence[int] | None = None,
) -> Tensor:
    """Logits after the last column; row i has slot `slots[i]` and sees positions up to its own."""
    cache.aim(at_BT if write_BT is None else write_BT, width=width, slots=slots)
    output = model(
        input_ids=ids_BT,
        attention_mask=_mask(at_BT, width, model.dtype),
        position_ids=at_BT,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits_BV: Tensor = output.logits[:, -1]
    return logits_BV


def _mask(at_BT: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores. Every layer would make this of a mask of booleans again."""
    hidden_B1TW = (torch.arange(width, device=at_BT.device) > at_BT[:, :, None])[:, None]
    mask_B1TW = torch.zeros_like(hidden_B1TW, dtype=dtype)
    return mask_B1TW.masked_fill_(hidden_B1TW, torch.finfo(dtype).min)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No gradients and no dropout; every module is put back as it was."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, flag in flags:
            module.training = flag
            _make_trainable(module)


def _make_trainable(module: torch.nn.Module) -> None:
    """What a module computed for itself in inference mode could not be trained through."""
    for held in (module._buffers, vars(module)):
        for name, value in held.items():
            if isinstance(value, Tensor) and value.is_inference():
                held[name] = value.clone()


def pieces(length: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, length)) for at in range(0, length, size)]
