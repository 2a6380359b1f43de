"""Dumps with one row per rollout become `rollouts`, and `steps` is summed up from them.

So `steps` has the mean reward, the spread inside groups and the share of groups without any.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatline.trace.importers import verifiers, verl
from flatline.trace.importers.log import Log, nothing_in, quoted

KINDS = {"verl": verl, "verifiers": verifiers}


def kind_of(values: Mapping[str, Any]) -> str | None:
    """`verl` or `verifiers` for a row that is a rollout, None for a row of metrics."""
    return next((name for name, kind in KINDS.items() if values.keys() >= kind.NEEDS), None)


def as_rollouts(log: Log) -> Log:
    """Recognise a dump by its first row; rows of another shape do not belong to it."""
    kind = kind_of(log.entries[0].values) if log.entries else None
    if kind is None:
        return log
    strays = [entry for entry in log.entries if kind_of(entry.values) != kind]
    log.bad.extend(f"{entry.place}: not a rollout as the first row is" for entry in strays)
    log.entries = [entry for entry in log.entries if kind_of(entry.values) == kind]
    log.source = kind
    return log


def rollout_rows(log: Log) -> list[dict[str, Any]]:
    """Rows of `rollouts`; a row without a reward is counted and left out."""
    kind = KINDS[log.source]
    rows: list[dict[str, Any]] = []
    for entry in log.entries:
        row = kind.rollout(entry.values)
        if row["reward"] is None:
            seen = quoted(entry.values[kind.REWARD])
            log.bad.append(f"{entry.place}: `{kind.REWARD}` is no number: {seen}")
        else:
            rows.append(row)
    if not rows:
        raise nothing_in(log, "rollout with a reward")
    _number_steps(log, rows)
    _number_groups(rows)
    log.notes.append("Rollouts of one step with the same prompt are taken as one group.")
    return rows


def summed_up(rollouts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row of `steps` for every step of the rollouts."""
    by_step: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rollouts:
        if math.isfinite(row["reward"]):
            by_step[row["step"]][row["group"]].append(row["reward"])
    return [_step_row(step, list(groups.values())) for step, groups in sorted(by_step.items())]


def _step_row(step: int, groups: list[list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "reward": float(np.mean(np.concatenate(groups)))}
    real = [group for group in groups if len(group) > 1]
    if real:
        row["reward_std_within"] = float(np.mean([np.std(group, ddof=1) for group in real]))
        row["zero_std_share"] = float(np.mean([min(group) == max(group) for group in real]))
    return row


def _number_steps(log: Log, rows: list[dict[str, Any]]) -> None:
    without = [row for row in rows if row["step"] is None]
    for row in without:
        row["step"] = 1
    if without:
        log.notes.append(f"{len(without)} rollouts name no step: they are all given step 1.")


def _number_groups(rows: list[dict[str, Any]]) -> None:
    """Number rollouts and groups inside their step, in the order of the file."""
    groups: dict[int, dict[str, int]] = defaultdict(dict)
    counts: dict[int, int] = defaultdict(int)
    for row in rows:
        step = row["step"]
        row["group"] = groups[step].setdefault(row["prompt_id"], len(groups[step]))
        row["rollout"], row["rank"] = counts[step], 0
        counts[step] += 1
