"""Healthy traces with one thing changed, token by token, and fake subjects for probes."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.traces import M, healthy_rows, run_facts

from flatline.errors import NotRecorded
from flatline.live.records import Batch, ContextEffect
from flatline.trace import Trace

Edit = Callable[[dict[str, Any]], None]


def edited(edit: Edit, *, steps: int = 3, settings: dict[str, Any] | None = None) -> Trace:
    """A healthy trace after `edit` changed each row of its tokens; what was sampled is unknown."""
    rows = healthy_rows(steps=steps)
    for row in rows["rollouts"]:
        del row["as_sampled"]
    for row in rows["tokens"]:
        edit(row)
    return Trace.from_rows(run=run_facts(**(settings or {})), **rows)


def sampled_otherwise(
    *, every: int = 1, ids: Callable[..., Any] | None = None, **columns: Callable[..., Any]
) -> Trace:
    """A healthy trace of which the sampler had other ids, in one rollout of `every` so many."""
    rows = healthy_rows(steps=3)
    other = {**columns, **({"sampled_ids": ids} if ids else {})}
    for at, (rollout, row) in enumerate(zip(rows["rollouts"], rows["tokens"], strict=True)):
        if at % every == 0:
            rollout["as_sampled"] = 0
            row |= {name: np.array(change(row)) for name, change in other.items()}
    return Trace.from_rows(run=run_facts(), **rows)


def without(table: str, *columns: str, steps: int = 3) -> Trace:
    """A healthy trace that lacks some columns of a table."""
    rows = healthy_rows(steps=steps)
    for row in rows[table]:
        for column in columns:
            row.pop(column)
    return Trace.from_rows(run=run_facts(), **rows)


def model_tokens(row: dict[str, Any]) -> np.ndarray:
    """Positions of the model's tokens."""
    return np.flatnonzero(np.asarray(row["author"]) == M)


def rng_of(row: dict[str, Any]) -> np.random.Generator:
    """Random numbers of one rollout."""
    return np.random.default_rng([row["step"], row["rollout"]])


def batch(*, rollouts: int = 8, tokens: int = 12, logprob: float = -1.0) -> Batch:
    """A batch of single-turn completions, all trained."""
    n = rollouts * tokens
    values = np.full(n, logprob)
    return Batch(
        prompt_id_R=np.array(["p"] * rollouts, dtype=object),
        group_R=np.arange(rollouts) // 4,
        advantage_R=np.zeros(rollouts),
        rollout_T=np.repeat(np.arange(rollouts), tokens),
        position_T=np.tile(np.arange(tokens), rollouts),
        ids_T=np.ones(n, dtype=np.int64),
        author_T=np.full(n, int(M)),
        trained_T=np.ones(n, dtype=bool),
        sampler_T=values,
        trainer_T=values,
    )


def effect(
    which: str, change_T: Sequence[float] | np.ndarray, *, rollouts: int = 8
) -> ContextEffect:
    """What replacing a part of the context did; empty where there is none."""
    change = np.asarray(change_T, dtype=float)
    there = np.arange(rollouts if change.size else 0)
    return ContextEffect(
        which=which,
        rollouts=there,
        replaced=np.full(len(there), 5),
        change=np.full(len(there), change.mean() if change.size else 0.0),
        change_T=change,
    )


def subject(**measurements: Any) -> Any:
    """What a probe sees; callables are methods."""
    return SimpleNamespace(**{"settings": {"bf16": False}, **measurements})


def altered(
    table: str, edit: Edit, *, settings: dict[str, Any] | None = None, **shape: Any
) -> Trace:
    """A healthy trace after `edit` changed each row of a table, from the first step on."""
    rows = healthy_rows(**shape)
    for row in rows[table]:
        if row["step"]:
            edit(row)
    return Trace.from_rows(run=run_facts(**(settings or {})), **rows)


def levels_of(
    look: Callable[[Any], Any] | None, cases: dict[str, tuple[str, Callable[[], Any]]]
) -> Any:
    """A test: `look`, a sign or a probe, finds each case to be of its level.

    Without a `look` a case is itself what was found. "no fault" is any other level, and a case may
    be "not recorded"."""

    @pytest.mark.parametrize(("level", "made"), cases.values(), ids=cases.keys())
    def test(level: str, made: Callable[[], Any]) -> None:
        try:
            found = look(made()) if look else made()
        except NotRecorded as error:
            assert level == "not recorded", error
        else:
            assert (found.level == level.removeprefix("no ")) is not level.startswith("no "), found

    return test
