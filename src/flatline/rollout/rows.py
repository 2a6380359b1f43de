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
    """Tokens that the round may have."""
    n: Tensor
    """Tokens drawn so far: which random numbers come next, and where the next token goes."""
    uniforms_NB: Tensor
    """Random numbers of the round."""
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

    def begin(self, starts: list[int], late: dict[int, int], turn: Plan, rooms: list[int]) -> None:
        """A new round: the first rows have plays, the others have not.

        Rows that are late are in the middle of a turn: they have the given token to read, and draw
        from the second token of the round on.
        """
        rows, tokens = len(starts), len(turn.uniforms_NB)
        self.n.zero_()
        self.done_B.fill_(True)
        self.done_B[:rows] = False
        self.at_B.zero_()
        self.at_B[:rows] = torch.tensor(starts)
        self.room_B[:rows] = torch.tensor([room + (i in late) for i, room in enumerate(rooms)])
        self.uniforms_NB[:tokens, :rows] = turn.uniforms_NB
        if late:
            late_L = torch.tensor(list(late))
            self.uniforms_NB[1 : tokens + 1, late_L] = turn.uniforms_NB[:, late_L].to(self.n.device)
            self.ids_B[late_L] = torch.tensor(list(late.values()), device=self.n.device)

    def draw_first(self, logits_FV: Tensor, rows: list[int], sampling: Sampling) -> None:
        """Draw the first token of the turns that begin."""
        rows_F = torch.tensor(rows, dtype=torch.long, device=logits_FV.device)
        ids_F, logps_F = sample(logits_FV, self.uniforms_NB[0, rows_F], sampling)
        self.drawn_NB[0, rows_F], self.logps_NB[0, rows_F] = ids_F, logps_F
        self.ids_B[rows_F] = ids_F
        self.n += 1
        self.done_B[rows_F] = self._is_over(ids_F, self.room_B[rows_F])

    def draw(self, logits_BV: Tensor, sampling: Sampling) -> None:
        """Draw a token for each of the first rows; note what ended."""
        rows = len(logits_BV)
        uniforms_B = self.uniforms_NB.index_select(0, self.n)[0, :rows]
        ids_B, logps_B = sample(logits_BV, uniforms_B, sampling)
        self.drawn_NB[:, :rows].index_copy_(0, self.n, ids_B[None])
        self.logps_NB[:, :rows].index_copy_(0, self.n, logps_B[None])
        self.ids_B[:rows] = ids_B
        self.n += 1
        self.done_B[:rows].logical_or_(self._is_over(ids_B, self.room_B[:rows]))

    def _is_over(self, ids_B: Tensor, room_B: Tensor) -> Tensor:
        return (ids_B[:, None] == self.ends_E).any(1) | (self.n >= room_B)

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
