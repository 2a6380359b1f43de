"""Token detail as flat arrays: one entry per completion token of the chosen steps.

Flat, because a mean over ten million tokens must not be a loop over rollouts.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flatline.errors import NotRecorded, TraceError
from flatline.rollout.record import Author
from flatline.trace.chunked_table import Pieces
from flatline.trace.frames import Frame
from flatline.trace.rows import indices, plain

UNKNOWN_AUTHOR = 255
NAMED = 5
"""Steps that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where what is trained first differs from what was sampled, in one prompt or completion."""

    row: int
    """Index of the rollout in `rollout_rows`."""
    in_prompt: bool
    """Whether it is the prompt that differs."""
    position: int
    """Of the first token that differs; one has ended there where the other goes on."""
    sampled: np.ndarray
    """All ids as they were sampled, or sampled after."""
    trained: np.ndarray
    """All ids as they are trained."""


class Tokens:
    """Tokens of some rollouts. Every field is read when it is asked for.

    A field of which nothing was recorded raises `NotRecorded`. Where only some rollouts have it,
    the others hold NaN, False or `UNKNOWN_AUTHOR`.
    """

    def __init__(self, pieces: Pieces, rollouts: Frame, places: "Places") -> None:
        self._pieces, self._rollouts = pieces, rollouts
        self._rows, self.rollout_rows = places.row, places.rollout_row
        self._asked = places.asked

    rollout_rows: np.ndarray
    """For every rollout here, its row number in `trace.rollouts`."""

    def __len__(self) -> int:
        return int(self._lengths.sum())

    @cached_property
    def row(self) -> np.ndarray:
        """For every token, the index of its rollout in `rollout_rows`."""
        return np.repeat(np.arange(len(self._lengths)), self._lengths)

    @cached_property
    def position(self) -> np.ndarray:
        """For every token, its place in the completion, from 0."""
        starts = np.cumsum(self._lengths) - self._lengths
        return np.asarray(np.arange(len(self)) - np.repeat(starts, self._lengths))

    @cached_property
    def ids(self) -> np.ndarray:
        """Token ids."""
        return self._flat("ids", fill=-1, dtype=np.int32)

    @cached_property
    def author(self) -> np.ndarray:
        """Who wrote it: a `flatline.rollout.record.Author`."""
        return self._flat("author", fill=UNKNOWN_AUTHOR, dtype=np.uint8)

    @cached_property
    def trained(self) -> np.ndarray:
        """Whether it has a loss."""
        return self._flat("trained", fill=0, dtype=np.uint8).astype(bool)

    @cached_property
    def attended(self) -> np.ndarray:
        """The attention mask that was really passed to the model."""
        return self._flat("attended", fill=0, dtype=np.uint8).astype(bool)

    @cached_property
    def sampler(self) -> np.ndarray:
        """Log-prob when it was sampled."""
        return self._flat("sampler", fill=np.nan, dtype=np.float32)

    @cached_property
    def trainer(self) -> np.ndarray:
        """Log-prob in the pass that is trained through."""
        return self._flat("trainer", fill=np.nan, dtype=np.float32)

    @cached_property
    def scored(self) -> np.ndarray:
        """The same at the temperature of the loss, where `trainer` is taken at another."""
        return self._flat("scored", fill=np.nan, dtype=np.float32)

    @cached_property
    def old(self) -> np.ndarray:
        """Log-prob that the ratio is taken against."""
        return self._flat("old", fill=np.nan, dtype=np.float32)

    @cached_property
    def reference(self) -> np.ndarray:
        """Log-prob under the reference model."""
        return self._flat("reference", fill=np.nan, dtype=np.float32)

    @cached_property
    def weight(self) -> np.ndarray:
        """How much the loss falls for each nat that it becomes more likely."""
        return self._flat("weight", fill=np.nan, dtype=np.float32)

    @cached_property
    def advantage(self) -> np.ndarray:
        """The advantage of its rollout."""
        return np.asarray(self._rollouts["advantage"][self.rollout_rows][self.row])

    @cached_property
    def first_of_turn(self) -> np.ndarray:
        """Whether it begins a turn of the model."""
        model = self.author == Author.MODEL
        after_model = np.concatenate([[False], model[:-1]])
        return np.asarray(model & ~(after_model & (self.position > 0)))

    @cached_property
    def turn(self) -> np.ndarray:
        """Which turn of the model it is in, from 0; -1 where another wrote it."""
        begun = np.cumsum(self.first_of_turn)
        starts = np.cumsum(self._lengths) - self._lengths
        before = np.concatenate([[0], begun])[starts]
        return np.where(self.author == Author.MODEL, begun - before[self.row] - 1, -1)

    @cached_property
    def prompt_ids(self) -> np.ndarray:
        """Token ids of the prompts, one after another."""
        return self._flat("prompt_ids", fill=-1, dtype=np.int32)

    @cached_property
    def prompt_attended(self) -> np.ndarray:
        """The attention mask over the prompts."""
        return self._flat("prompt_attended", fill=0, dtype=np.uint8).astype(bool)

    @cached_property
    def prompt_row(self) -> np.ndarray:
        """For every prompt token, the index of its rollout in `rollout_rows`."""
        return np.repeat(np.arange(len(self._prompt_lengths)), self._prompt_lengths)

    @cached_property
    def divergences(self) -> list[Divergence]:
        """Every prompt and completion that is not trained as it was sampled; raises `NotRecorded`
        where no rollout says what was sampled."""
        self._rollouts["as_sampled"]
        return [
            *self._differing("sampled_prompt_ids", "prompt_ids"),
            *self._differing("sampled_ids", "ids"),
        ]

    def _differing(self, sampled: str, trained: str) -> list[Divergence]:
        had = self._pieces.gather(sampled, self._rows)
        rows = np.flatnonzero(plain(had.is_valid()))
        if not len(rows):
            return []
        has = self._pieces.gather(trained, self._rows[rows])
        pairs = zip(rows, had.take(indices(rows)).to_pylist(), has.to_pylist(), strict=True)
        return [
            Divergence(
                row=int(row),
                in_prompt=trained == "prompt_ids",
                position=_first_difference(a, b),
                sampled=np.array(a, dtype=np.int32),
                trained=np.array(b, dtype=np.int32),
            )
            for row, a, b in pairs
        ]

    @cached_property
    def _lengths(self) -> np.ndarray:
        return _list_lengths(self._pieces.gather("ids", self._rows))

    @cached_property
    def _prompt_lengths(self) -> np.ndarray:
        return _list_lengths(self._pieces.gather("prompt_ids", self._rows))

    def _flat(self, name: str, *, fill: float, dtype: type) -> np.ndarray:
        column = self._pieces.gather(name, self._rows)
        if column.null_count == len(column):
            raise NotRecorded(f"tokens.{name}", seen=None if len(column) else self._none_of_these())
        lengths = self._prompt_lengths if name.startswith("prompt") else self._lengths
        here = plain(column.is_valid())
        self._refuse_misaligned(name, _list_lengths(column), np.where(here, lengths, 0))
        parts = [plain(part.flatten(), fill) for part in column.chunks]
        values = np.concatenate([part.astype(dtype, copy=False) for part in parts])
        if not here.all():
            whole = np.full(lengths.sum(), fill, dtype=dtype)
            whole[np.repeat(here, lengths)] = values
            values = whole
        values.flags.writeable = False
        return values

    def _none_of_these(self) -> str | None:
        """Which steps have token detail, where those that were asked for have none."""
        there = np.unique(_whole(self._pieces.column("step")))
        if not self._asked or not len(there):
            return None
        named = ", ".join(map(str, self._asked[:NAMED]))
        more = ", ..." if len(self._asked) > NAMED else ""
        return (
            f"There are no tokens of step{'s' if len(self._asked) > 1 else ''} {named}{more}.\n"
            f"{len(there)} steps have token detail, from {there[0]} to {there[-1]}.\n"
            "`trace.token_steps` lists them."
        )

    def _refuse_misaligned(self, name: str, found: np.ndarray, expected: np.ndarray) -> None:
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            row = self.rollout_rows[wrong[0]]
            step, rollout = (int(self._rollouts[key][row]) for key in ("step", "rollout"))
            raise TraceError(
                f"`tokens.{name}` of step {step}, rollout {rollout} has {found[wrong[0]]} entries "
                f"for {expected[wrong[0]]} tokens, so they cannot be matched.\n"
                "Record one entry per token."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the tokens of rollouts lie. One entry per rollout that has any."""

    step: np.ndarray
    """Its step."""
    row: np.ndarray
    """Its row of the token table, ascending."""
    rollout_row: np.ndarray
    """Its row in `trace.rollouts`."""
    asked: tuple[int, ...] = ()
    """The steps that were asked for; none where that was all."""

    @classmethod
    def of(cls, pieces: Pieces, rollouts: Frame) -> "Places":
        """All of a trace."""
        step, rollout = (_whole(pieces.column(name)) for name in ("step", "rollout"))
        keys = _keys(step, rollout)
        known = _keys(_whole(rollouts.arrow("step")), _whole(rollouts.arrow("rollout")))
        if not len(known):
            return cls(step=step[:0], row=keys[:0], rollout_row=keys[:0])
        order = np.argsort(known, kind="stable")
        place = np.minimum(np.searchsorted(known[order], keys), len(known) - 1)
        # A crash may have kept the tokens of a rollout and not the rollout.
        rows = np.flatnonzero(known[order][place] == keys)
        return cls(step=step[rows], row=rows, rollout_row=order[place[rows]])

    def at(self, steps: Collection[int]) -> "Places":
        """Those of some steps."""
        kept = np.isin(self.step, np.asarray(list(steps), dtype=np.int64))
        return Places(
            step=self.step[kept],
            row=self.row[kept],
            rollout_row=self.rollout_row[kept],
            asked=tuple(sorted(steps)),
        )


def _first_difference(a: list[int], b: list[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def _keys(step: np.ndarray, rollout: np.ndarray) -> np.ndarray:
    return np.asarray(step * 2**32 + rollout)


def _whole(column: pa.ChunkedArray) -> np.ndarray:
    """Integers that are never null in a trace of ours; an import without them matches nothing."""
    return plain(column.cast(pa.int64()), -1)


def _list_lengths(column: pa.ChunkedArray) -> np.ndarray:
    return plain(pc.list_value_length(column)).astype(np.int64)
