"""What a dump with one row per rollout says of itself, and how a sequence of tokens is split."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatline.rollout.record import Author
from flatline.trace.importers.numbers import number
from flatline.trace.tokens import UNKNOWN_AUTHOR

Row = dict[str, Any]
"""A row of `rollouts`. May also hold what `ASIDE` names: `tokens` (a row of that table), `same`
(what the rollouts of a group share, where that is not the prompt), `heldout` (it was an evaluation)
and `sequences` (how many its history was rewritten into)."""
ASIDE = ("tokens", "same", "heldout", "sequences")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One format of a dump."""

    needs: frozenset[str]
    """Names by which a row is recognised."""
    reward: str
    """The name that the reward is under, for messages."""
    known: frozenset[str]
    """All names that the importer reads or leaves out on purpose."""
    rollouts: Callable[[Mapping[str, Any]], list[Row]]
    """A row of the dump as rows of `rollouts`; never raises, whatever the values are."""
    note: str = ""
    """What a reader of the trace should know."""
    may_lack_reward: bool = False
    """Whether some versions of it write no reward at all; their rollouts have none."""


def sequence(
    ids: Any, trained: Any, *, sampler: Any, trainer: Any, old: Any = None, end: int | None = None
) -> Row | None:
    """A prompt and its completion as a row of `tokens`, from lists over both.

    The completion begins with the first token that carries loss. Such a dump does not say who wrote
    a token: those with loss are taken as the model's, and H02 looks for what was never sampled.
    None where the lists are missing, differ in length or hold other things than numbers.
    """
    every, loss = _array(ids), _array(trained)
    if every is None or loss is None or len(every) != len(loss):
        return None
    if not (((every >= 0) & (every < 2**31)).all() and np.isfinite(loss).all()):
        return None
    on = np.flatnonzero(loss[:end])
    if not len(on):
        return None
    there = slice(int(on[0]), end)
    here = (loss[there] != 0).astype(np.uint8)
    return {
        "prompt_ids": every[: there.start].astype(np.int32),
        "ids": every[there].astype(np.int32),
        "trained": here,
        "author": np.where(here, Author.MODEL, UNKNOWN_AUTHOR).astype(np.uint8),
        "sampler": _part(sampler, len(every), there),
        "trainer": _part(trainer, len(every), there),
        "old": _part(old, len(every), there),
    }


def counted(tokens: Row | None) -> Row:
    """The columns of `rollouts` that count tokens."""
    if tokens is None:
        return {}
    trained = tokens.get("trained")
    return {
        "prompt_tokens": len(tokens["prompt_ids"]),
        "completion_tokens": len(tokens["ids"]),
        "model_tokens": int((np.asarray(tokens["author"]) == Author.MODEL).sum()),
        "trained_tokens": None if trained is None else int(np.sum(trained)),
    }


def hashed(ids: np.ndarray) -> str:
    """A name for a prompt that is known by its token ids only."""
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:16]


def constant(values: Any, where: Any = None) -> float | None:
    """The one number that a value is, or that a list holds everywhere (or where it is trained)."""
    if not isinstance(values, list):
        return number(values)
    found, mask = _array(values), _array(where)
    if found is not None and mask is not None and len(mask) == len(found):
        found = found[mask != 0]
    if found is None or not len(found) or not (found == found[0]).all():
        return None
    return float(found[0])


def _part(values: Any, length: int, there: slice) -> np.ndarray | None:
    found = _array(values)
    if found is None or len(found) != length:
        return None
    with np.errstate(over="ignore"):
        return found[there].astype(np.float32)


def _array(values: Any) -> np.ndarray | None:
    """A list of numbers, NaN where one is missing; None for anything else."""
    if not isinstance(values, list) or not values:
        return None
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.ndim == 1 else None
