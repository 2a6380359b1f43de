"""Recording a run from any training loop.

    with Recorder("runs/x", settings={"num_generations": 8, "beta": 0.0}) as recorder:
        for step in range(1, 101):
            ...
            recorder.log_rollouts([{"step": step, "rollout": 0, "group": 0, "reward": 1.0}, ...])
            recorder.log_step(step=step, reward=0.4, metrics={"my/number": 3.0})

The columns are those of `flatline/trace/schema.py`. Log what you have: a column that is never
logged is "not recorded", never zero. `log_step` comes last in a step; what was logged before it
then survives a killed process.
"""

import difflib
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.rollout.record import Author
from flatline.trace.closing import Closing
from flatline.trace.rows import Row, refuse_unknown, to_batch
from flatline.trace.settings import NO_NUMBERS, SETTINGS
from flatline.trace.writer import Sink, Writer

_NEEDED = {
    "steps": ("step",),
    "rollouts": ("step", "rollout"),
    "tokens": ("step", "rollout", "ids"),
    "weights": ("step", "name"),
    "vocabulary": ("id", "text"),
}
_ONCE = {
    "steps": ("step",),
    "rollouts": ("step", "rollout"),
    "tokens": ("step", "rollout"),
}
"""What may be logged once; a second row would count twice in every mean."""
_PER_PROMPT_TOKEN = ("prompt_attended",)
_PER_TOKEN = ("author", "trained", "attended", "sampler", "trainer", "old", "reference", "weight")


class Recorder(Closing):
    """Writes the trace of a run; also a context manager, which closes it."""

    def __init__(
        self,
        folder: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        rank: int = 0,
        seed: int | None = None,
        source: str = "recorder",
    ) -> None:
        given = dict(settings or {})
        _refuse_bad_settings(given)
        self._rank, self._closed = rank, False
        self._latest: dict[str, tuple[int, set[Any]]] = {}
        self._sink: Sink = Writer(
            folder,
            rank=rank,
            run={
                "source": source,
                "versions": {"python": platform.python_version()},
                "seed": given.get("seed") if seed is None else seed,
                "fault": None,
                "settings": {**dict.fromkeys(SETTINGS), **given},
            },
        )

    def log_step(
        self, *, step: int, metrics: Mapping[str, float] | None = None, **columns: float
    ) -> None:
        """One optimizer step, from 1; `metrics` is all that your trainer logs, under its names."""
        self._log("steps", [{"step": step, "metrics": metrics, **columns}])
        self._sink.end_step()

    def log_rollouts(self, rollouts: Iterable[Row]) -> None:
        """One row per rollout; `step` is the first step that trains on it."""
        self._log("rollouts", [{"rank": self._rank, **row} for row in rollouts])

    def log_tokens(self, rollouts: Iterable[Row]) -> None:
        """Token detail: one row per rollout, lists with one entry per completion token."""
        rows = [{"rank": self._rank, **row} for row in rollouts]
        for row in rows:
            _refuse_unknown_authors(row)
            _refuse_misaligned(row, "ids", _PER_TOKEN)
            _refuse_misaligned(row, "prompt_ids", _PER_PROMPT_TOKEN)
        self._log("tokens", rows)

    def log_weights(self, tensors: Iterable[Row]) -> None:
        """One row per trainable tensor and step."""
        self._log("weights", list(tensors))

    def log_vocabulary(self, texts: Mapping[int, str]) -> None:
        """The text of token ids, so that tokens can be shown as text."""
        self._log("vocabulary", [{"id": key, "text": text} for key, text in texts.items()])

    def close(self, *, clean: bool = True) -> None:
        """The run is over; not `clean` leaves the files as a crash would, which can be read too."""
        self._closed = True
        self._sink.close(clean=clean)

    def _log(self, table: str, rows: Sequence[Row]) -> None:
        if self._closed:
            raise TraceError(
                f"This recorder was closed, so a row for `{table}` would be lost.\n"
                "Log inside `with Recorder(...) as recorder:`, or close it later."
            )
        refuse_unknown(table, {name for row in rows for name in row})
        for row in rows:
            missing = [name for name in _NEEDED[table] if row.get(name) is None]
            if missing:
                raise TraceError(
                    f"A row for `{table}` lacks `{missing[0]}`, so it could not be placed.\n"
                    f"Every row needs {', '.join(f'`{name}`' for name in _NEEDED[table])}."
                )
        to_batch(table, rows)  # values that do not fit are an error here, not in the thread
        for row in rows:
            _refuse_no_step(table, row)
            if table in _ONCE:
                self._refuse_repeated(table, row)
        self._sink.write(table, rows)

    def _refuse_repeated(self, table: str, row: Row) -> None:
        """Of the latest step alone: all steps of a long run are too many to keep in mind."""
        step, key = row["step"], tuple(row[name] for name in _ONCE[table])
        latest, seen = self._latest.get(table, (-1, set()))
        if step != latest:
            self._latest[table] = (step, {key})
        elif key in seen:
            named = ", ".join(f"{name} {row[name]}" for name in _ONCE[table])
            raise TraceError(
                f"`{table}` has a row for {named} already, and both would be counted.\n"
                "Give all columns of it in one call."
            )
        else:
            seen.add(key)


def _refuse_no_step(table: str, row: Row) -> None:
    step = row.get("step", 0)
    if step < 0:
        raise TraceError(f"Step {step} of `{table}`: steps are counted from 0, the start.")


def _refuse_unknown_authors(row: Row) -> None:
    given = row.get("author")
    strange = {*(given if given is not None else ()), None} - {None, *Author}
    if strange:
        known = ", ".join(f"{author.value} {author.name.lower()}" for author in Author)
        raise TraceError(
            f"`author` of step {row.get('step')}, rollout {row.get('rollout')} holds "
            f"{min(strange)}, which does not say who wrote that token.\nThe authors are {known}."
        )


def _refuse_misaligned(row: Row, ids: str, names: Sequence[str]) -> None:
    tokens = row.get(ids)
    for name in names:
        values = row.get(name)
        if values is not None and (tokens is None or len(values) != len(tokens)):
            count = 0 if tokens is None else len(tokens)
            raise TraceError(
                f"`{name}` of step {row.get('step')}, rollout {row.get('rollout')} has "
                f"{len(values)} entries for {count} tokens in `{ids}`.\n"
                "Give one entry per token."
            )


def _refuse_bad_settings(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=3) or SETTINGS
            raise TraceError(
                f"`{name}` is not a setting that diagnosis knows, so it would be ignored.\n"
                f"Did you mean {', '.join(f'`{other}`' for other in near)}?"
            )
        if name not in NO_NUMBERS and not isinstance(given[name], (int, float, type(None))):
            raise TraceError(
                f"The setting `{name}` is {given[name]!r}, and diagnosis reckons with a number.\n"
                f"Give `{name}` as a number, or leave it out where it is not known."
            )
