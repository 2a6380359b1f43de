"""The picture that the page of a run opens with: the one that shows its cause.

    reading   what the sampler read beside what the trainer read, hidden text blacked out
    loss      what the model wrote beside what carries a loss
    group     one group: rewards, the advantages trained on, those that the rewards ask for
    chart     the curve that the cause bends, with the step where it bends most

Where a picture needs what was not recorded, the curve takes its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any

import numpy as np

from flatline.diagnosis.report import Report
from flatline.errors import NotRecorded, TraceError
from flatline.hypotheses.base import Finding
from flatline.hypotheses.recorded_steps import expected_advantages
from flatline.report.charts import Chart, marked
from flatline.report.token_columns import TokenColumns, token_columns
from flatline.rollout.record import Author
from flatline.text import shortened
from flatline.trace import Trace

READING = frozenset(
    ("H04", "H09", "H10", "H11", "H12", "H15", "H16", "H19", "H20", "H21", "H49", "H50", "H54")
)
"""Causes that are seen in what the two sides read."""
LOSS = frozenset(("H02", "H07", "H14", "H51"))
"""Causes that are seen in which tokens carry a loss."""
GROUP = frozenset(("H01", "H05", "H32", "H33", "H34", "H36", "H37", "H39", "H45", "H52", "H53"))
"""Causes that are seen in the rewards and advantages of one group."""
MOST_TOKENS = 3000
"""Tokens of a side; a longer rollout is shown to here."""
MOST_ROLLOUTS = 16
"""Rollouts of the group that is shown."""
OFF = 1e-3
"""Relative difference from which an advantage is not the one asked for."""
LONGEST = 160
"""Characters of a completion in the table of a group."""
FEWEST = 8
"""Values that a curve needs before a step is named where it bends."""
BENT = 0.5
"""Share of the variance that one bend must explain."""

Run = tuple[str, str]
"""Class and text of tokens beside each other that are shown alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two texts beside each other."""

    title: str
    runs: list[Run]
    note: str
    """What the marks mean, and how much of the text carries them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A picture; exactly one of `sides`, `rows` and `chart` is there."""

    title: str
    compared: str = ""
    """What the advantages of `rows` are compared with."""
    sides: tuple[Side, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    chart: Chart | None = None
    note: str = ""


def opening_of(
    trace: Trace, report: Report, charts: Sequence[Chart], points_to: Sequence[str]
) -> Opening | None:
    """The picture of the first cause; of the reward where there is none. `points_to` are the
    charts of that cause, best first."""
    cause = report.causes[0] if report.causes else None
    made = _of_cause(trace, cause) if cause is not None else None
    return made or _curve(charts, (*points_to, "reward"))


def _of_cause(trace: Trace, cause: Finding) -> Opening | None:
    draw = next((make for codes, make in _PICTURES if cause.hypothesis in codes), None)
    try:
        return draw(trace, cause) if draw and len(trace.rollouts) else None
    except (NotRecorded, TraceError):
        return None


def _place(trace: Trace, cause: Finding) -> tuple[int, int] | None:
    """The rollout that the cause names, else the first with token detail."""
    named = [(one.step, one.rollout) for one in cause.evidence]
    known = [(step, number) for step, number in named if step is not None and number is not None]
    if known:
        return known[0]
    if not len(trace.token_steps):
        return None
    step = int(trace.token_steps[0])
    numbers = trace.rollouts["rollout"][trace.rollouts["step"] == step]
    return (step, int(numbers.min())) if len(numbers) else None


def _tokens(trace: Trace, cause: Finding) -> tuple[tuple[int, int], TokenColumns] | None:
    place = _place(trace, cause)
    tokens = token_columns(trace, *place) if place else None
    return (place, tokens) if place and tokens is not None else None


def _reading(trace: Trace, cause: Finding) -> Opening | None:
    """Both sides read the same text, or the page shows where they do not."""
    found = _tokens(trace, cause)
    if found is None:
        return None
    place, tokens = found
    ids = _joined(tokens.prompt_ids, tokens.ids)
    sampled = _joined(
        tokens.prompt_ids if tokens.sampled_prompt_ids is None else tokens.sampled_prompt_ids,
        tokens.ids if tokens.sampled_ids is None else tokens.sampled_ids,
    )
    gone, other = _differing(sampled, ids)
    hidden = ~_joined(
        _or_ones(tokens.prompt_attended, tokens.prompt_ids), _or_ones(tokens.attended, tokens.ids)
    ).astype(bool)
    if not (hidden.any() or gone.any() or other.any()):
        return None
    marks = np.where(hidden, "black", np.where(other, "other", ""))
    return Opening(
        title=f"What each side read: step {place[0]}, rollout {place[1]}",
        sides=(
            Side(
                title="The sampler read",
                runs=_runs(trace, sampled, np.where(gone, "gone", "")),
                note=_counted(gone, "tokens that the trainer does not have") or "All of it.",
            ),
            Side(
                title="The trainer read",
                runs=_runs(trace, ids, marks),
                note=" ".join(
                    text
                    for text in (
                        _counted(hidden, "tokens hidden (under bars)"),
                        _counted(other & ~hidden, "tokens that were not sampled (marked)"),
                    )
                    if text
                ),
            ),
        ),
    )


def _loss(trace: Trace, cause: Finding) -> Opening | None:
    """The model's words beside those that carry a loss."""
    found = _tokens(trace, cause)
    if found is None:
        return None
    place, tokens = found
    author, trained = tokens.author, tokens.trained
    if author is None or trained is None:
        return None
    own = np.asarray(author == Author.MODEL)
    foreign, left_out = trained & ~own, own & ~trained
    marks = np.where(foreign, "other", np.where(left_out, "gone", np.where(trained, "own", "")))
    return Opening(
        title=f"What is trained: step {place[0]}, rollout {place[1]}",
        sides=(
            Side(
                title="The model wrote",
                runs=_runs(trace, tokens.ids, np.where(own, "own", "")),
                note=_counted(own, "tokens (green)"),
            ),
            Side(
                title="The loss is on",
                runs=_runs(trace, tokens.ids, marks),
                note=" ".join(
                    text
                    for text in (
                        _counted(trained, "tokens."),
                        _counted(foreign, "that the model did not write (red)"),
                        _counted(left_out, "of its own without a loss (struck out)"),
                    )
                    if text
                ),
            ),
        ),
    )


def _group(trace: Trace, cause: Finding) -> Opening | None:
    """Rewards, what was trained on, and what the rewards ask for."""
    if "reward" not in trace.rollouts:
        return None
    reward, asked = trace.rollouts["reward"], expected_advantages(trace)
    known = "advantage" in trace.rollouts
    used = trace.rollouts["advantage"] if known else np.full(len(reward), np.nan)
    group, named = _rows_of(trace, cause, used, asked)
    rows, known_rewards = _shown(group, named), reward[group][np.isfinite(reward[group])]
    specified = bool(np.isfinite(asked[rows]).all())
    if specified:
        wanted = asked[rows]
        wrong = np.abs(used[rows] - wanted) > OFF * (1 + np.abs(wanted))
    else:
        wanted = reward[rows] - (known_rewards.mean() if len(known_rewards) else np.nan)
        wrong = used[rows] * wanted < 0
    return Opening(
        title=f"One group: step {int(trace.rollouts['step'][rows[0]])}",
        compared="advantage its rewards ask for" if specified else "reward minus the group's mean",
        rows=tuple(
            {
                "rollout": int(trace.rollouts["rollout"][row]),
                "reward": _number(reward[row]),
                "used": _number(used[row]),
                "wanted": _number(wanted[at]),
                "wrong": bool(wrong[at]),
                "said": _said(trace, row),
            }
            for at, row in enumerate(rows.tolist())
        ),
        note="Red: the two do not belong together." if wrong.any() else "",
    )


def _said(trace: Trace, row: int) -> str:
    """The beginning of a completion; empty where none was recorded."""
    if "completion" not in trace.rollouts:
        return ""
    return shortened(str(trace.rollouts["completion"][row] or ""), limit=LONGEST)


def _shown(rows: np.ndarray, named: int) -> np.ndarray:
    """As many rollouts of a group as have room, the named one among them."""
    at = int(np.flatnonzero(rows == named)[0])
    first = max(0, min(at - MOST_ROLLOUTS // 2, len(rows) - MOST_ROLLOUTS))
    return rows[first : first + MOST_ROLLOUTS]


def _rows_of(
    trace: Trace, cause: Finding, used: np.ndarray, asked: np.ndarray
) -> tuple[np.ndarray, int]:
    """The group that the cause names, else the one whose advantages are furthest off; and which of
    its rows that is."""
    index = trace.groups().index
    for one in cause.evidence:
        if one.step is not None and one.rollout is not None:
            at_step = trace.rollouts["step"] == one.step
            named = np.flatnonzero(at_step & (trace.rollouts["rollout"] == one.rollout))
            if len(named):
                return np.flatnonzero(index == index[named[0]]), int(named[0])
    worst = int(np.argmax(np.nan_to_num(np.abs(used - asked), nan=0.0)))
    return np.flatnonzero(index == index[worst]), worst


def _curve(charts: Sequence[Chart], wanted: Sequence[str]) -> Opening | None:
    by_id = {chart.id: chart for chart in charts}
    chart = next((by_id[one] for one in wanted if one in by_id), None)
    if chart is None:
        return None
    step = _bend(chart)
    if step is None:
        return Opening(title=chart.title, chart=chart)
    shown = marked(chart, {"largest change": [step]})
    return Opening(title=chart.title, chart=replace(shown, findings=chart.findings))


def _bend(chart: Chart) -> int | None:
    """The step from which on one level explains more than half of what the curve does."""
    if not chart.by_step or chart.figure["layout"]["shapes"]:
        return None  # the finding names its steps itself
    line = next((one for one in chart.figure["data"] if "markers" in one.get("mode", "")), None)
    if line is None:
        return None
    known = [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if None not in (x, y)]
    if len(known) < FEWEST:
        return None
    step, value = np.array(known, dtype=float).T
    if chart.figure["layout"]["yaxis"].get("type") == "log":
        value = np.log10(value)
    at, share = _best_split(value)
    return int(step[at]) if share > BENT else None


def _best_split(value: np.ndarray) -> tuple[int, float]:
    """Where two levels explain most of the variance, and which share of it."""
    total = float(((value - value.mean()) ** 2).sum())
    ends = np.arange(2, len(value) - 1)
    before = np.cumsum(value)[ends - 1] / ends
    after = (value.sum() - np.cumsum(value)[ends - 1]) / (len(value) - ends)
    between = ends * (len(value) - ends) / len(value) * (before - after) ** 2
    best = int(np.argmax(between))
    return int(ends[best]), float(between[best]) / total if total else 0.0


def _joined(first: np.ndarray | None, second: np.ndarray) -> np.ndarray:
    return second if first is None else np.concatenate([first, second])


def _or_ones(mask: np.ndarray | None, ids: np.ndarray | None) -> np.ndarray:
    if mask is not None:
        return mask
    return np.ones(0 if ids is None else len(ids), dtype=bool)


def _differing(sampled: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens of each side the other does not have in its place."""
    gone, other = np.zeros(len(sampled), dtype=bool), np.zeros(len(trained), dtype=bool)
    if np.array_equal(sampled, trained):
        return gone, other
    sides = sampled[:MOST_TOKENS].tolist(), trained[:MOST_TOKENS].tolist()
    for kind, a, b, c, d in SequenceMatcher(None, *sides, autojunk=False).get_opcodes():
        if kind != "equal":
            gone[a:b], other[c:d] = True, True
    return gone, other


def _runs(trace: Trace, ids: np.ndarray, marks: np.ndarray) -> list[Run]:
    """Tokens with the same mark together, as text."""
    shown = zip(marks[:MOST_TOKENS].tolist(), ids[:MOST_TOKENS].tolist(), strict=True)
    runs = [
        (mark, trace.decode([token for _, token in tokens]))
        for mark, tokens in groupby(shown, key=lambda pair: pair[0])
    ]
    left = len(ids) - MOST_TOKENS
    return [*runs, ("", f" … {left} more tokens")] if left > 0 else runs


def _counted(which: np.ndarray, what: str) -> str:
    return f"{int(which.sum()):,} of {len(which):,} {what}" if which.any() else ""


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


_PICTURES = ((READING, _reading), (LOSS, _loss), (GROUP, _group))
