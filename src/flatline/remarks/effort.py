"""What a step costs, where that grows: batches that are sampled to fill one, and its seconds."""

import re
from collections.abc import Iterator

import numpy as np

from flatline.hypotheses.column_movement import metric
from flatline.remarks.columns import Column, listed, short
from flatline.remarks.remark import Remark
from flatline.remarks.shape import typical
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

ROWS = 10
"""Rows at either end that are compared."""
MORE, LONGER = 1.5, 1.25
"""Growth of the batches and of the seconds of a step that is told."""
MOST = 0.5
"""Share of the growth that one part of a step makes, to be told with it."""
_BATCHES = re.compile(r"(.*/)?(num_|n_)?(gen(eration)?|sampl(e|ing)|rollout)_?(batches|rounds)")
_PART = re.compile(r"tim(e|ing)|sec")


def effort(trace: Trace, columns: list[Column]) -> Iterator[Remark]:
    """Batches first: where groups of equal rewards are dropped, they say what the reward hides."""
    for one in columns:
        ends = _grows(one, MORE)
        if ends and _BATCHES.fullmatch(plain(one.name)) and one.shape.values.min() >= 1:
            yield Remark(
                2,
                "It takes more and more sampled batches to fill a step: "
                f"{one.subject} is {short(ends[0])} in the first {ROWS} rows and "
                f"{short(ends[1])} in the last. Fewer and fewer groups are kept, about "
                f"{1 / ends[1]:.0%} at last if a batch is as large as a step; a reward of the kept "
                "groups alone does not show the rest.",
            )
    seconds = next((one for one in columns if one.name == "seconds"), None)
    ends = _grows(seconds, LONGER) if seconds is not None else None
    if ends:
        times = f"{short(ends[1] / ends[0])} times as long at the end"
        told = f"A step takes {times}: {short(ends[0])} s in the first {ROWS} rows, "
        yield Remark(2.5, f"{told}{short(ends[1])} s in the last{_mostly(trace, ends)}.")


def grown(columns: list[Column]) -> set[str]:
    """The columns of which this is told."""
    return {
        one.name
        for one in columns
        if (one.name == "seconds" and _grows(one, LONGER))
        or (_BATCHES.fullmatch(plain(one.name)) and _grows(one, MORE))
    }


def _grows(one: Column, times: float) -> tuple[float, float] | None:
    """The first rows and the last of a column that is certainly so many times as large."""
    values = one.shape.values
    if len(values) < 3 * ROWS or values.min() <= 0 or not one.shape.moves:
        return None
    first, last = typical(values[:ROWS]), typical(values[-ROWS:])
    return (first, last) if last >= times * first else None


def _mostly(trace: Trace, ends: tuple[float, float]) -> str:
    """The part of a step that makes most of it."""
    grown = ends[1] - ends[0]
    aliases = trace.run.get("aliases") or {}
    found = {}
    for name in trace.metric_names:
        values = metric(trace, name)
        if name == aliases.get("seconds") or not _PART.search(name) or len(values) < 3 * ROWS:
            continue
        if np.isfinite(values).all() and values.min() > 0:
            first, last = typical(values[:ROWS]), typical(values[-ROWS:])
            if MOST * grown <= last - first <= grown / MOST:
                found[f"`{name}` ({short(first)} to {short(last)})"] = last - first
    most = sorted(found, key=lambda text: -found[text])[:1]
    return f", most of it {listed(most)}" if most else ""
