"""Reading a recorded run: `Trace.open` for a directory, `Trace.from_rows` for rows in memory."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatline.errors import NotRecorded, TraceError, type_to_add
from flatline.trace.chunked_table import MemoryPiece, Pieces
from flatline.trace.ending import Ending
from flatline.trace.folder import Folder
from flatline.trace.frames import Frame, Groups
from flatline.trace.rows import Row, plain, refuse_unknown, to_batch
from flatline.trace.schema import SCHEMA_VERSION, TABLES
from flatline.trace.tokens import Places, Tokens

_NOT_CLOSED = (
    "This run was not closed: it was interrupted, crashed or was killed, or its folder could no "
    "longer be written to, or it still goes on on a disk without locks."
)
RECENT = 4
"""Sets of steps whose token detail is kept: most hypotheses look at the same few steps."""


class Trace:
    """What a run recorded. Columns are read when they are asked for.

    trace = Trace.open("runs/x")
    trace.rollouts["reward"]            # numpy array, one entry per rollout
    trace.groups().each("reward")       # the same, group by group
    trace.tokens(steps=[1]).sampler     # flat over the completion tokens of step 1
    trace.query("SELECT step, avg(reward) FROM rollouts GROUP BY step")
    """

    def __init__(
        self,
        run: Mapping[str, Any],
        tables: Mapping[str, Pieces],
        *,
        warnings: list[str],
        stops: Sequence[str] = (),
        ending: Ending | None = None,
        closed: bool = True,
    ) -> None:
        self.run = dict(run)
        """What `run.json` says."""
        self.warnings = warnings
        """What could not be read, and where; grows while columns are read."""
        self.stops = tuple(stops)
        """Where the recording broke off while the training went on, and why."""
        self.ending = ending
        """The exception that the training ended with, where one is known."""
        self._closed = closed
        self._tables = dict(tables)
        self._recent: dict[frozenset[int], Tokens] = {}

    @classmethod
    def open(cls, path: str | Path) -> "Trace":
        """The trace in a run directory: finished, still running or crashed."""
        folder = Folder.open(Path(path))
        return cls(
            folder.run,
            folder.tables,
            warnings=folder.warnings,
            stops=folder.stops,
            ending=folder.ending,
            closed=folder.closed,
        )

    @classmethod
    def from_rows(
        cls,
        *,
        run: Mapping[str, Any] | None = None,
        steps: Sequence[Row] = (),
        rollouts: Sequence[Row] = (),
        tokens: Sequence[Row] = (),
        weights: Sequence[Row] = (),
        vocabulary: Sequence[Row] = (),
    ) -> "Trace":
        """A trace in memory."""
        rows = {
            "steps": steps,
            "rollouts": rollouts,
            "tokens": tokens,
            "weights": weights,
            "vocabulary": vocabulary,
        }
        for name, found in rows.items():
            refuse_unknown(name, {key for row in found for key in row})
        return cls.from_batches(
            {name: [to_batch(name, found)] for name, found in rows.items() if found}, run=run
        )

    @classmethod
    def from_batches(
        cls, batches: Mapping[str, Sequence[pa.RecordBatch]], *, run: Mapping[str, Any] | None
    ) -> "Trace":
        """A trace in memory, from Arrow batches of the schema."""
        tables = {name: Pieces(name, [MemoryPiece(name, batches.get(name, ()))]) for name in TABLES}
        return cls({"schema": SCHEMA_VERSION, **(run or {})}, tables, warnings=[])

    def naming(self, correct: str) -> "Trace":
        """The same trace, of which the user says which part tells right from wrong."""
        parts = list(self.parts()) if len(self.rollouts) else []
        if correct not in parts:
            raise TraceError(
                f"correct={correct!r} names no part of the reward.\n"
                "So nothing would say which answers are right.\n"
                f"There are: {', '.join(map(repr, parts)) or 'none, since no rollout has parts'}."
            )
        return Trace(
            {**self.run, "settings": {**self.settings, "correct": correct}},
            self._tables,
            warnings=self.warnings,
            stops=self.stops,
            ending=self.ending,
            closed=self._closed,
        )

    def until(self, step: int) -> "Trace":
        """The trace as it was after an optimizer step."""
        return self.between(0, step)

    def between(self, first: int, last: int) -> "Trace":
        """Some steps of the trace, both ends among them."""
        tables = {name: table.between(first, last + 1) for name, table in self._tables.items()}
        return Trace(self.run, tables, warnings=self.warnings)

    def of_rows(self, kept: np.ndarray) -> "Trace":
        """Some rows of `steps` alone, each of them kept or not: a log without what is beside it."""
        table = self._tables["steps"].to_table().filter(pa.array(kept))
        return Trace.from_batches({"steps": table.to_batches()}, run=self.run)

    @property
    def settings(self) -> dict[str, Any]:
        """The canonical settings of the run; None where unknown."""
        found = self.run.get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def caveats(self) -> list[str]:
        """What was lost, left out or assumed when this was recorded and read."""
        dropped = self.run.get("dropped_tokens")
        slow = f"Token detail of {dropped} rollouts was dropped: the disk was slow."
        ended = None if self.stops else self.stopped
        nothing = not (len(self.steps) or len(self.rollouts))
        return [
            *self.warnings,
            *([ended] if ended else []),
            *(["Nothing was recorded: there is no step and no rollout."] if nothing else []),
            *(str(note) for note in _listed(self.run.get("notes"))),
            *(f"Left out of the recording: {part}" for part in _listed(self.run.get("left_out"))),
            *([slow] if dropped else []),
            *([self.rows_left_out] if self.rows_left_out else []),
        ]

    @property
    def rows_left_out(self) -> str:
        """What is said of rows that were sampled, never trained and not recorded; empty where all
        were: groups are then smaller than they were sampled, and a log may count all."""
        return str(self.run.get("rows_left_out") or "")

    @property
    def stopped(self) -> str | None:
        """How the recording ended before the run did; None where it is whole, or still goes on."""
        if self.stops:
            return " ".join(self.stops)
        if self.ending is not None:
            return str(self.ending)
        last = int(self.steps["step"].max(initial=0)) if len(self.steps) else 0
        return None if self._closed else f"{_NOT_CLOSED} It is recorded up to step {last}."

    @property
    def resumed(self) -> bool:
        """Whether it was started several times: what an earlier start had asked for is unknown."""
        return len({piece.segment for piece in self._tables["rollouts"].pieces}) > 1

    @cached_property
    def steps(self) -> Frame:
        """One row per optimizer step."""
        return Frame(self._tables["steps"])

    @cached_property
    def rollouts(self) -> Frame:
        """One row per rollout."""
        return Frame(self._tables["rollouts"])

    @cached_property
    def weights(self) -> Frame:
        """One row per trainable tensor and step."""
        return Frame(self._tables["weights"])

    @property
    def tables(self) -> dict[str, Pieces]:
        """The tables as they lie in their files."""
        return dict(self._tables)

    def parts(self) -> dict[str, np.ndarray]:
        """Every named part of the reward, one entry per rollout, NaN where absent."""
        return self._parts

    def metric(self, name: str) -> np.ndarray:
        """What the trainer logged under this name, one entry per step, NaN where absent."""
        if name not in self._metrics:
            raise NotRecorded(f"steps.metrics[{name!r}]")
        return self._metrics[name]

    @property
    def metric_names(self) -> list[str]:
        """All names that `metric` knows."""
        return sorted(self._metrics)

    def groups(self) -> Groups:
        """The rollouts as GRPO groups them."""
        return self._groups

    def tokens(self, steps: Collection[int] | None = None) -> Tokens:
        """Token detail of some steps, or of all; name the steps to bound memory."""
        table = self._tables["tokens"]
        if steps is None:
            return Tokens(table, self.rollouts, self._places)
        wanted = frozenset(steps)
        if wanted not in self._recent:
            if len(self._recent) == RECENT:
                del self._recent[next(iter(self._recent))]
            self._recent[wanted] = Tokens(table, self.rollouts, self._places.at(wanted))
        return self._recent[wanted]

    @cached_property
    def token_steps(self) -> np.ndarray:
        """The steps that have token detail."""
        return np.unique(plain(self._tables["tokens"].column("step")).astype(np.int64))

    def text(self, token_id: int) -> str:
        """The text of a token; `<id>` where it was not recorded."""
        return self._vocabulary.get(int(token_id), f"<{int(token_id)}>")

    def decode(self, ids: Iterable[int]) -> str:
        """The texts of tokens, joined."""
        return "".join(self.text(token_id) for token_id in ids)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Answer SQL over the views `steps`, `rollouts`, `tokens` (a row a token), `weights`."""
        try:
            from flatline.trace.query import query  # DuckDB takes a while to load
        except ImportError as error:
            raise TraceError(
                f"SQL over a trace needs {error.name}, which is not installed.\n"
                f"{type_to_add('query')}."
            ) from error
        return query(self._tables, sql, parameters)

    @cached_property
    def _places(self) -> Places:
        return Places.of(self._tables["tokens"], self.rollouts)

    @cached_property
    def _parts(self) -> dict[str, np.ndarray]:
        return self.rollouts.named("parts")

    @cached_property
    def _metrics(self) -> dict[str, np.ndarray]:
        return self.steps.named("metrics")

    @cached_property
    def _groups(self) -> Groups:
        return Groups(self.rollouts)

    @cached_property
    def _vocabulary(self) -> dict[int, str]:
        table = self._tables["vocabulary"]
        ids, texts = (table.column(name).to_pylist() for name in ("id", "text"))
        found = zip(ids, texts, strict=True)
        return {key: text for key, text in found if None not in (key, text)}


def _listed(value: Any) -> list[Any]:
    """A list of `run.json`, which anyone may have edited."""
    return value if isinstance(value, list) else []
