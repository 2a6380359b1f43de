"""What a step of decoding reads and writes besides the cache, and what the host sees of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from flatline.rollout.loop import Plan
from flatline.rollout.sampling import Sampling, sample

PARKING = 8
"""Tokens beyond the longest turn, where steps that are only tried write."""


@dataclass(slots=True, kw_only=True)
class Rows:
    """One row for every slot of the cache; none of these tensors ever moves."""

    ids_B: Tensor
    """The token that each row reads next."""
    at_B: Tensor
    """Its position."""
    done_B: Tensor
    """Whether the row has ended, or has no play."""
    room_B: Tensor
    """Tokens that the turn may have."""
    n: Tensor
    """Tokens drawn so far: which random numbers come next, and where the next token goes."""
    uniforms_NB: Tensor
    """Random numbers of the turn."""
    drawn_NB: Tensor
    """The tokens."""
    logps_NB: Tensor
    """Their log-probs."""
    ends_E: Tensor
    """Tokens that end a turn."""

    @classmethod
    def new(cls, rows: int, tokens: int, ends: tuple[int, ...], device: torch.device) -> "Rows":
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            ids_B=zeros(rows, dtype=torch.long),
            at_B=zeros(rows, dtype=torch.long),
            done_B=torch.ones(rows, dtype=torch.bool, device=device),
            room_B=zeros(rows, dtype=torch.long),
            n=zeros(1, dtype=torch.long),
            uniforms_NB=zeros(tokens, rows, dtype=torch.float64),
            drawn_NB=zeros(tokens, rows, dtype=torch.long),
            logps_NB=zeros(tokens, rows, dtype=torch.float32),
            ends_E=torch.tensor(ends, dtype=torch.long, device=device),
        )

    def begin(self, starts: list[int], turn: Plan, rooms: list[int]) -> None:
        """A new turn: the first rows have plays, the others have not."""
        rows, tokens = len(starts), len(turn.uniforms_NB)
        self.n.zero_()
        self.done_B.fill_(True)
        self.done_B[:rows] = False
        self.at_B.zero_()
        self.at_B[:rows] = torch.tensor(starts)
        self.room_B[:rows] = torch.tensor(rooms)
        self.uniforms_NB[:tokens, :rows] = turn.uniforms_NB

    def draw(self, logits_BV: Tensor, sampling: Sampling) -> None:
        """Draw a token for each of the first rows; note what ended."""
        rows = len(logits_BV)
        uniforms_B = self.uniforms_NB.index_select(0, self.n)[0, :rows]
        ids_B, logps_B = sample(logits_BV, uniforms_B, sampling)
        self.drawn_NB[:, :rows].index_copy_(0, self.n, ids_B[None])
        self.logps_NB[:, :rows].index_copy_(0, self.n, logps_B[None])
        self.ids_B[:rows] = ids_B
        self.n += 1
        ended_B = (ids_B[:, None] == self.ends_E).any(1) | (self.n >= self.room_B[:rows])
        self.done_B[:rows].logical_or_(ended_B)

    def reorder(self, order: list[int]) -> None:
        """Move rows to the front; those behind them have ended."""
        order_B, rows = torch.tensor(order, device=self.n.device), len(order)
        for held_B in (self.ids_B, self.at_B, self.done_B, self.room_B):
            held_B[:rows] = held_B[order_B]
        self.uniforms_NB[:, :rows] = self.uniforms_NB[:, order_B]
        self.done_B[rows:] = True

    @contextmanager
    def parked(self) -> Iterator[None]:
        """All rows ended: what is tried inside leaves no mark on the turn, nor on the cache."""
        held = [self.ids_B, self.at_B, self.done_B, self.n]
        saved = [tensor.clone() for tensor in held]
        self.done_B.fill_(True)
        self.n.fill_(len(self.drawn_NB) - PARKING)
        try:
            yield
        finally:
            for tensor, value in zip(held, saved, strict=True):
                tensor.copy_(value)


class Flags:
    """Which rows have ended, asked for now and read later."""

    def __init__(self, rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._host_B = torch.zeros(rows, dtype=torch.bool, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self.asked = False

    def ask(self, done_B: Tensor) -> None:
        self._host_B.copy_(done_B, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(done_B.device))
        self.asked = True

    def read(self) -> list[bool]:
        """The answer to the last question."""
        if self._copied is not None:
            self._copied.synchronize()
        self.asked = False
        done: list[bool] = self._host_B.tolist()
        return done
