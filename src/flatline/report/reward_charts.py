"""Charts of what is paid: the reward, its parts, and the reward of easy and hard problems."""

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.h44_data_order import ORDERED
from flatline.hypotheses.trend import FEWEST
from flatline.report.charts import (
    MUTED,
    SERIES,
    Chart,
    Figure,
    band,
    error_bars,
    figure,
    label,
    points,
)
from flatline.report.series import (
    Means,
    Run,
    finite,
    heldout,
    means,
    smoothed,
    stretches,
)
from flatline.trace import Trace

MOST_PARTS = 12
"""Parts of the reward that are drawn; more cannot be told apart."""


def reward(run: Run) -> Chart:
    """The training reward, raw, with an interval over the prompts of each step."""
    found = _reward_by_step(run.trace)
    made = figure([], y="reward")
    if np.isfinite(found.low).any():
        made["data"].append(
            band(found.at, found.low, found.high, "95 % interval over prompts", SERIES[0])
        )
    made["data"].append(points(found.at, found.value, "mean of the step, raw"))
    if len(found.at) >= FEWEST:
        made["data"] += [_thirds(found), _visual_aid(found)]
    return Chart(
        id="reward",
        title="Does the training reward rise?",
        healthy="it climbs; in the lab by 0.25 to 0.35 over 30 steps. Judge it by the points and "
        "the sentence on top, not by the smoothed line.",
        figure=made,
    )


def heldout_reward(run: Run) -> Chart:
    """Held-out reward: what the training reward stands for."""
    found = heldout(run)
    trace = run.trace
    if found is None:
        value = trace.steps["heldout_reward"]
        known = np.isfinite(value)
        line = points(trace.steps["step"][known], value[known], "held-out reward", SERIES[2])
        note = "No interval: single rollouts were not kept."
    else:
        line = points(found.at, found.value, "held-out reward, 95 % interval", SERIES[2])
        line["error_y"] = error_bars(found.estimates) | {"color": SERIES[2]}
        problems = found.estimates[0].n if found.estimates else 0
        note = f"{problems} problems, the same at every evaluation."
    line["mode"] = "lines+markers"
    line["marker"] = {"color": SERIES[2], "size": 8}
    return Chart(
        id="heldout",
        title="Does it hold on problems that were not trained on?",
        healthy="it rises with the training reward, and ends within a third of the reward's span "
        "of it (in 26 healthy runs within 0.11).",
        figure=figure([line], y="held-out reward"),
        note=note,
    )


def parts(run: Run) -> Chart:
    """Every part of the reward over the run."""
    trace = run.trace
    names = part_names(trace)
    at = stretches(trace.rollouts["step"], most=40)
    made = figure([], y="mean of the part")
    for color, name in zip(_colors(len(names)), names, strict=True):
        found = means(trace.parts()[name], trace.groups().index, at)
        made["data"].append(points(found.at, found.value, label(name), color))
    return Chart(
        id="parts",
        title="Which part of the reward moves?",
        healthy="the part that says whether the answer is right moves with the reward. A reward "
        "that climbs by format alone has learnt no answers.",
        figure=made,
        note=_stretched(trace, 40),
    )


def hops(run: Run) -> Chart:
    """The reward by difficulty."""
    trace = run.trace
    hop, step, reward_of = (trace.rollouts[name] for name in ("hops", "step", "reward"))
    at, group = stretches(step), trace.groups().index
    kinds = np.unique(finite(hop))[: len(SERIES)]
    made = figure([], y="reward")
    for color, kind in zip(_colors(len(kinds)), kinds, strict=True):
        mine = hop == kind
        found = means(reward_of[mine], group[mine], at[mine])
        line = points(found.at, found.value, f"{int(kind)} hops", color)
        line["error_y"] = error_bars(found.estimates) | {"color": color}
        made["data"].append(line)
    made["layout"]["showlegend"] = True
    return Chart(
        id="hops",
        title="Do easy and hard problems move together?",
        healthy="every line rises, and each is present from beginning to end (correlation of hops "
        f"and step below {ORDERED}; healthy up to 0.21).",
        figure=made,
        note=_stretched(trace, 12),
    )


def _reward_by_step(trace: Trace) -> Means:
    if len(trace.rollouts):
        try:
            return means(trace.rollouts["reward"], trace.groups().index, trace.rollouts["step"])
        except NotRecorded:
            pass  # rollouts without groups have no independent unit; the steps still have a mean
    value = trace.steps["reward"]
    known = np.isfinite(value)
    return means(value[known], np.arange(known.sum()), trace.steps["step"][known])


def _visual_aid(found: Means) -> Figure:
    line = points(found.at, smoothed(found.value), "smoothed: visual aid only", MUTED)
    return line | {"mode": "lines", "line": {"color": MUTED, "width": 1.5, "dash": "dot"}}


def _thirds(found: Means) -> Figure:
    """What the sentence on top compares: the first third of the steps with the last."""
    third = len(found.at) // 3
    weight = np.array([one.n for one in found.estimates], dtype=float)
    ends = [slice(0, third), slice(-third, None)]
    level_of = [np.average(found.value[end], weights=weight[end]) for end in ends]
    x = [[found.at[end][0], found.at[end][-1], np.nan] for end in ends]
    y = [[value, value, np.nan] for value in level_of]
    line = points(np.concatenate(x), np.concatenate(y), "first and last third", SERIES[1])
    return line | {"mode": "lines", "line": {"color": SERIES[1], "width": 3}}


def part_names(trace: Trace) -> list[str]:
    """The parts that vary, at least two of them or there is nothing to compare."""
    total = trace.rollouts["reward"]
    names = [name for name, value in trace.parts().items() if np.isfinite(value).any()]
    names = [name for name in names if not np.array_equal(trace.parts()[name], total)]
    if not names:
        raise NotRecorded("rollouts.parts")
    return names[:MOST_PARTS]


def _colors(n: int) -> list[str]:
    return [SERIES[i % len(SERIES)] for i in range(n)]


def _stretched(trace: Trace, most: int) -> str:
    steps = len(np.unique(trace.rollouts["step"]))
    return f"Means over {most} stretches of the {steps:,} steps." if steps > most else ""
