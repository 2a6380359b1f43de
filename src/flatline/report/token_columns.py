"""The tokens of one rollout as columns for a page: who wrote them, what was trained, what differs.

Numbers that mean nothing are left out: the sampler has no log-prob for what a tool wrote, though
the trace may hold a zero there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flatline.errors import TraceError
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.chunked_table import Pieces

WORST = 20
"""Positions with the largest disagreement that a page can jump to."""
NOTEWORTHY = 1e-4
"""Difference below which it is the rounding of float32."""
LOGPROBS = ("sampler", "trainer", "old", "reference")
_COLUMNS = ("ids", "author", "trained", "attended", *LOGPROBS, "prompt_ids", "prompt_attended")
_SAMPLED = ("sampled_prompt_ids", "sampled_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """The completion of one rollout, one entry per token; None where nothing was recorded."""

    ids: np.ndarray
    """Token ids."""
    author: np.ndarray | None
    """An `Author`, or 255."""
    trained: np.ndarray | None
    """Whether it has a loss."""
    attended: np.ndarray | None
    """Whether the model could see it in the pass that is trained through."""
    logprobs: dict[str, np.ndarray]
    """By name, NaN where there is none."""
    prompt_ids: np.ndarray | None
    """Token ids of the prompt."""
    prompt_attended: np.ndarray | None
    """Whether the model could see them in training."""
    sampled_prompt_ids: np.ndarray | None
    """What the sampler had in front of it, where that is something else."""
    sampled_ids: np.ndarray | None
    """What the sampler wrote or was given after it, where that is something else."""

    @property
    def difference(self) -> np.ndarray | None:
        """Sampler minus trainer."""
        if not {"sampler", "trainer"} <= self.logprobs.keys():
            return None
        return np.asarray(self.logprobs["sampler"] - self.logprobs["trainer"])

    @property
    def worst(self) -> list[int]:
        """Positions where sampler and trainer differ most, worst first."""
        if self.difference is None:
            return []
        size = np.nan_to_num(np.abs(self.difference), nan=0.0, posinf=np.inf)
        order = np.argsort(-size, kind="stable")[:WORST]
        return [int(at) for at in order if size[at] > NOTEWORTHY]

    def stretches(self) -> list[tuple[Author | None, np.ndarray]]:
        """Ids cut wherever another writes on."""
        if self.author is None:
            return [(None, self.ids)]
        cuts = np.flatnonzero(np.diff(self.author)) + 1
        known = {int(author): author for author in Author}
        firsts = [0, *cuts.tolist()] if len(self.ids) else []
        parts = np.split(self.ids, cuts)
        return [
            (known.get(int(self.author[at])), part) for at, part in zip(firsts, parts, strict=False)
        ]

    def numbers(self, first: int, last: int) -> dict[str, list[Any]]:
        """What a page is told about the tokens from `first` up to `last`."""
        found = {name: _floats(values[first:last]) for name, values in self.logprobs.items()}
        if self.difference is not None:
            found["difference"] = _floats(self.difference[first:last])
        for name in ("author", "trained", "attended"):
            values = getattr(self, name)
            if values is not None:
                found[name] = values[first:last].astype(int).tolist()
        return {"id": self.ids[first:last].tolist(), **found}


def token_columns(trace: Trace, step: int, rollout: int) -> TokenColumns | None:
    """The tokens of a rollout; None where it has no token detail."""
    pieces = trace.tables["tokens"]
    steps, numbers = (_whole(pieces, name) for name in ("step", "rollout"))
    rows = np.flatnonzero((steps == step) & (numbers == rollout))[:1]
    if not len(rows):
        return None
    # A column is read once, and only the part of the file that holds the row: views stay quick.
    found = {name: _list(pieces, name, rows) for name in _COLUMNS}
    ids, prompt = found["ids"], found["prompt_ids"]
    if ids is None:
        return None
    for name, values in found.items():
        _refuse_misaligned(name, values, prompt if name.startswith("prompt") else ids)
    sampled = {name: _list(pieces, name, rows) for name in _SAMPLED}
    author, trained, attended = found["author"], _mask(found["trained"]), _mask(found["attended"])
    return TokenColumns(
        ids=ids,
        author=author,
        trained=trained,
        attended=attended,
        logprobs=_logprobs(found, len(ids), author, trained),
        prompt_ids=prompt,
        prompt_attended=_mask(found["prompt_attended"]),
        **sampled,
    )


def _whole(pieces: Pieces, name: str) -> np.ndarray:
    return np.asarray(pieces.column(name).fill_null(-1))


def _list(pieces: Pieces, name: str, rows: np.ndarray) -> np.ndarray | None:
    """The entries of one row, NaN or 255 where one is null; None where there is no list."""
    (value,) = pieces.gather(name, rows)
    if not value.is_valid:
        return None
    fill = np.nan if name in LOGPROBS else 255 if name == "author" else 0
    return np.asarray(value.values.fill_null(fill))


def _mask(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else values.astype(bool)


def _refuse_misaligned(name: str, values: np.ndarray | None, ids: np.ndarray | None) -> None:
    if values is not None and (ids is None or len(values) != len(ids)):
        tokens = 0 if ids is None else len(ids)
        raise TraceError(
            f"`tokens.{name}` has {len(values)} entries for {tokens} tokens, so they cannot be "
            "matched.\nRecord one entry per token."
        )


def _logprobs(
    found: dict[str, np.ndarray | None],
    size: int,
    author: np.ndarray | None,
    trained: np.ndarray | None,
) -> dict[str, np.ndarray]:
    written = np.ones(size, dtype=bool) if author is None else author == Author.MODEL
    scored = written if trained is None else written | trained
    kept = {}
    for name in LOGPROBS:
        values = found[name]
        if values is not None:
            meant = written if name == "sampler" else scored
            kept[name] = np.where(meant, values.astype(np.float64), np.nan)
    return kept


def _floats(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(f"{value:.5g}") for value in values]
