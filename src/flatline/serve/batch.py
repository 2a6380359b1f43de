"""Turns that are decoded together. One may join at any step, and leaves when it has ended.

Table, cache and sampling are those of `flatline.rollout`: each token is fed once, rows have their
own positions, and the log-prob is that of the distribution really drawn from. An `Engine` plays all
episodes of a batch to their ends; here every row has its own settings and somebody waiting for it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flatline.rollout.kv import SlotCache
from flatline.rollout.sampling import Sampling, filtered_logprobs, sample, uniforms
from flatline.rollout.table import Job, Play, Table
from flatline.serve.spelling import Spelling
from flatline.tasks.base import Episode, Problem

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

STOP, LENGTH, GONE = "stop", "length", "gone"
"""Why a turn ended: by itself, at its limit, or because nobody waits for it any more."""


class Likely(NamedTuple):
    """A token that might have been drawn."""

    id: int
    logprob: float


class Piece(NamedTuple):
    """What a turn has gained since the piece before."""

    text: str
    ids: list[int]
    logprobs: list[float]
    likely: list[list[Likely]]
    """Per token, the most likely ones; empty where none were asked for."""
    finish: str | None
    """Why the turn ended; None while it goes on."""
    stop: str | None = None
    """The stop string that ended it, if one did."""
    weight_version: int = 0
    """Which delivery of weights wrote it."""
    error: str | None = None
    """Why the turn cannot be finished, if it cannot."""


@dataclass(slots=True, eq=False, kw_only=True)
class Turn(Play):
    """One turn of the model that somebody waits for."""

    sampling: Sampling
    """How its tokens are drawn."""
    room: int
    """Tokens that it may have, at least one."""
    ends: frozenset[int]
    """Tokens that end it."""
    spelling: Spelling | None
    """Its text so far; None where only the whole text is wanted."""
    uniforms_N: "np.ndarray"
    """Its random numbers."""
    top: int
    """How many likely tokens are wanted at each position."""
    stream: bool
    """Whether pieces are wanted as they come."""
    on_piece: Callable[[Piece], None]
    """Is told what was written; called by the thread that owns the model."""
    likely: list[list[Likely]] = field(default_factory=list)
    gone: bool = False
    """Whether the one who asked has gone away."""
    finish: str | None = None
    sent_text: int = 0
    sent_ids: int = 0


def turn_of(
    prompt_ids: list[int],
    *,
    sampling: Sampling,
    room: int,
    ends: frozenset[int],
    tokenizer: Any,
    stops: Sequence[str] = (),
    seed: int = 0,
    sample: int = 0,
    top: int = 0,
    stream: bool = False,
    on_piece: Callable[[Piece], None],
) -> Turn:
    """A turn after this prompt. Seed and sample number decide its random numbers."""
    problem = Problem(id="", question="", answer="", hops=0)
    return Turn(
        job=Job(problem, sample),
        index=0,
        # The one who asked runs the tools: nothing is played or scored here.
        episode=cast(Episode, None),
        prompt_ids=prompt_ids,
        sampling=sampling,
        room=room,
        ends=ends,
        spelling=Spelling(tokenizer, stops) if stream or stops else None,
        uniforms_N=uniforms(seed, problem.id, sample, room),
        top=top,
        stream=stream,
        on_piece=on_piece,
    )


class GrowingCache(SlotCache):
    """A cache that gains slots while others are in use."""

    def grow(self, slots: int) -> None:
        self.slots = slots
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                if len(old) < slots:
                    tensors[layer] = old.new_zeros(self._shape(old))
                    tensors[layer][: len(old)] = old


class Batch:
    """The turns in play."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._going: list[Turn] = []
        self._joining: list[Turn] = []
        self._last_B: Tensor | None = None
        self._clear()

    def __len__(self) -> int:
        return len(self._going) + len(self._joining)

    def join(self, turn: Turn) -> None:
        """Take the turn in at the next step."""
        self._joining.append(turn)

    def step(self) -> list[Turn]:
        """Draw one token for every turn; those that have ended now."""
        logits_BV = self._feed() if self._joining else self._table.step(self._drawn_B())
        ids_B = self._draw(logits_BV)
        going = {turn for turn in self._going if turn.finish is None}
        ended = [turn for turn in self._going if turn.finish is not None]
        if not going:
            self._clear()
        elif ended:
            order = self._table.seat_first(cast(set[Play], going), among=len(self._going))
            ids_B = ids_B[order]
            self._going = cast(list[Turn], self._table.plays[: len(going)])
        self._last_B = ids_B
        return ended

    def streaming(self) -> list[Turn]:
        """Turns that go on and want to be told of every token."""
        return [turn for turn in self._going if turn.stream]

    def give_up(self) -> list[Turn]:
        """Let all turns go, unfinished."""
        left = [*self._going, *self._joining]
        self._joining = []
        self._clear()
        return left

    def _clear(self) -> None:
        """An empty table. The memory of the last turns is given back."""
        self._going = []
        self._table = Table(self._model, [], GrowingCache(0, capacity=1))

    def _drawn_B(self) -> "Tensor":
        assert self._last_B is not None, "every turn is fed before it steps"
        return self._last_B

    def _feed(self) -> "Tensor":
        """Seat those who join behind the others; feed what each has not read."""
        self._table.keep(set(self._going))
        for turn in self._going:
            turn.fed = len(turn) - 1
        self._going = [*self._going, *self._joining]
        self._joining = []
        self._table.plays = list(self._going)
        cast(GrowingCache, self._table.cache).grow(len(self._going))
        return self._table.feed()

    def _draw(self, logits_BV: "Tensor") -> "Tensor":
        """A token for each turn, drawn as it wants; what each has gained is noted."""
        import torch

        numbers = [turn.uniforms_N[len(turn.completion_ids)] for turn in self._going]
        uniforms_B = torch.tensor(numbers, dtype=torch.float64, device=logits_BV.device)
        ids_B = torch.empty(len(numbers), dtype=torch.long, device=logits_BV.device)
        logps_B = torch.empty(len(numbers), dtype=torch.float32, device=logits_BV.device)
        for sampling, rows in self._alike().items():
            ids_B[rows], logps_B[rows] = sample(logits_BV[rows], uniforms_B[rows], sampling)
        for row, (turn, id, logprob) in enumerate(
            zip(self._going, ids_B.tolist(), logps_B.tolist(), strict=True)
        ):
            if turn.top:
                turn.likely.append(_likely(logits_BV[row], turn.sampling, turn.top))
            _note(turn, id, logprob)
        return ids_B

    def _alike(self) -> dict[Sampling, list[int]]:
        """Rows by how their tokens are drawn."""
        rows: dict[Sampling, list[int]] = {}
        for row, turn in enumerate(self._going):
            rows.setdefault(turn.sampling, []).append(row)
        return rows


def _note(turn: Turn, id: int, logprob: float) -> None:
    """Add a token to its turn, and end the turn where it ends."""
    turn.completion_ids.append(id)
    turn.logprobs.append(logprob)
    ended = id in turn.ends
    if turn.spelling is not None and not ended:
        turn.spelling.push(id)
    if turn.gone:
        turn.finish = GONE
    elif ended or (turn.spelling is not None and turn.spelling.stop is not None):
        turn.finish = STOP
    elif len(turn.completion_ids) >= turn.room:
        turn.finish = LENGTH


def _likely(logits_V: "Tensor", sampling: Sampling, top: int) -> list[Likely]:
    """The most likely tokens of the distribution that is drawn from."""
    import torch

    if sampling.temperature == 0:
        logps_V = torch.log_softmax(logits_V.float(), dim=-1)
    else:
        logps_V = filtered_logprobs(logits_V[None], sampling)[0]
    best = logps_V.topk(min(top, len(logps_V)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Likely(id, logprob) for id, logprob in pairs if math.isfinite(logprob)]
