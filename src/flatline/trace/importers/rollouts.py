"""Dumps with one row per rollout become `rollouts` and `tokens`; `steps` is summed up from them.

So `steps` has the mean reward, the spread inside groups and the share of groups without any, and
the held-out reward where the dump holds evaluations too.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flatline.trace.importers import episodes, nemo_rl, prime_tokens, skyrl, verifiers, verl
from flatline.trace.importers.kind import ASIDE, Kind, Row
from flatline.trace.importers.log import Entry, Log, nothing_in, quoted

KINDS: dict[str, Kind] = {
    "verl": verl.KIND,
    "skyrl": skyrl.KIND,
    "verifiers": verifiers.KIND,
    "verifiers-episodes": episodes.EPISODE,
    "verifiers-traces": episodes.TRACE,
    "prime-rl-tokens": prime_tokens.KIND,
    "nemo-rl": nemo_rl.TRAINED,
    "nemo-rl-validation": nemo_rl.VALIDATED,
}
"""Every dump that is known, most telling first."""


class Tables(NamedTuple):
    """What a dump gives."""

    rollouts: list[Row]
    tokens: list[Row]
    steps: list[Row]


def kind_of(values: Mapping[str, Any]) -> str | None:
    """The name of the dump that a row belongs to, None for a row of metrics."""
    return next((name for name, kind in KINDS.items() if values.keys() >= kind.needs), None)


def as_rollouts(log: Log, *, step: int | None = None, tokens: bool = True) -> Log:
    """Recognise a dump by its first row and turn its rows into rollouts, all but their numbers.

    `step` is for rows that name none. Without `tokens`, token detail is dropped at once: it is most
    of a dump, and hypotheses look at a few steps of it.
    """
    name = kind_of(log.entries[0].values) if log.entries else None
    if name is None:
        return log
    raw, log.entries, log.source = log.entries, [], name
    for entry in raw:
        if kind_of(entry.values) != name:
            log.bad.append(f"{entry.place}: not a rollout as the first row is")
            continue
        for row in _read(log, KINDS[name], entry):
            row["step"] = step if row["step"] is None else row["step"]
            if not tokens:
                row["tokens"] = None
            log.entries.append(Entry(entry.place, row))
    return log


def tables(log: Log) -> Tables:
    """The rollouts of a dump, numbered, with their tokens and the steps they add up to."""
    rows = [entry.values for entry in log.entries]
    if not rows:
        raise nothing_in(log, "rollout with a reward")
    if KINDS[log.source].note:
        log.notes.append(KINDS[log.source].note)
    _number_steps(log, rows)
    heldout = [row for row in rows if row.get("heldout")]
    played = [row for row in rows if not row.get("heldout")] or heldout
    _number_groups(log, played)
    tokens = [_token_row(row) for row in played if row.get("tokens")]
    if rewritten := sum((row.get("sequences") or 1) > 1 for row in played):
        log.notes.append(
            f"{rewritten} of {len(played)} rollouts have several sequences, because their history "
            "was rewritten (H12): the tokens of the last are read."
        )
    for row in rows:
        for name in ASIDE:
            row.pop(name, None)
    steps = summed_up(played)
    if heldout and played is not heldout:
        _add_heldout(log, steps, heldout)
    return Tables(played, tokens, steps)


def summed_up(rollouts: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row of `steps` for every step of the rollouts."""
    by_step: dict[int, dict[int | None, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rollouts:
        if row["reward"] is None:
            by_step[row["step"]]
        elif math.isfinite(row["reward"]):
            by_step[row["step"]][row["group"]].append(row["reward"])
    return [_step_row(step, groups) for step, groups in sorted(by_step.items())]


def _read(log: Log, kind: Kind, entry: Entry) -> Iterator[Row]:
    """The rollouts of one row of the dump; one without a reward is counted and left out, unless
    the dump has none."""
    parts: set[str] = set()
    has_none = kind.may_lack_reward and kind.reward not in entry.values
    for row in kind.rollouts(entry.values):
        parts.update(row["parts"])
        if row["reward"] is None and not has_none:
            seen = quoted(entry.values.get(kind.reward))
            log.bad.append(f"{entry.place}: `{kind.reward}` is not a number: {seen}")
        else:
            yield row
    log.unrecognised.update(entry.values.keys() - kind.known - parts)


def _step_row(step: int, groups: Mapping[int | None, list[float]]) -> Row:
    row: Row = {"step": step}
    if groups:
        row["reward"] = float(np.mean(np.concatenate(list(groups.values()))))
    real = [group for number, group in groups.items() if number is not None and len(group) > 1]
    if real:
        row["reward_std_within"] = float(np.mean([np.std(group, ddof=1) for group in real]))
        row["zero_std_share"] = float(np.mean([min(group) == max(group) for group in real]))
    return row


def _add_heldout(log: Log, steps: list[Row], heldout: list[Row]) -> None:
    """The mean reward of the evaluations that were played at a step."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in heldout:
        if math.isfinite(row["reward"]):
            found[row["step"]].append(row["reward"])
    for step in steps:
        if rewards := found.get(step["step"]):
            step["heldout_reward"] = float(np.mean(rewards))
    log.notes.append(f"{len(heldout)} rollouts are evaluations: they fill `heldout_reward` only.")


def _number_steps(log: Log, rows: list[Row]) -> None:
    without = [row for row in rows if row["step"] is None]
    for row in without:
        row["step"] = 1
    if without:
        log.notes.append(f"{len(without)} rollouts name no step: they are all given step 1.")


def _number_groups(log: Log, rows: list[Row]) -> None:
    """Number rollouts and groups inside their step, in the order of the file."""
    groups: dict[int, dict[Any, int]] = defaultdict(dict)
    counts: dict[int, int] = defaultdict(int)
    by_prompt = False
    for row in rows:
        step, same = row["step"], row.get("same")
        by_prompt |= not isinstance(same, str)
        shared = same if isinstance(same, str) else row["prompt_id"]
        known = groups[step]
        row["group"] = None if shared is None else known.setdefault(shared, len(known))
        row["rollout"], row["rank"] = counts[step], 0
        counts[step] += 1
    if by_prompt:
        log.notes.append("Rollouts of one step with the same prompt are taken as one group.")


def _token_row(row: Row) -> Row:
    return {name: row[name] for name in ("step", "rank", "rollout")} | dict(row["tokens"])
