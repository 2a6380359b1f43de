"""Charts of the policy: how far it moved, how sure it is, and whether both sides see it alike."""

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses import logprobs
from flatline.hypotheses.h04_context_truncation import CUT
from flatline.hypotheses.kl_unit import BROKEN
from flatline.report.charts import (
    MUTED,
    SERIES,
    Chart,
    Figure,
    band,
    error_bars,
    figure,
    level,
    logarithmic,
    points,
    see_through,
)
from flatline.report.series import Means, Run, finite, spans
from flatline.stats import Estimate
from flatline.trace import Trace

GAP_STEPS = 24
"""Steps whose tokens are read for the chart of gaps."""
SMALLEST_GAP = 1e-8
"""A gap of exactly 0 has no place on a logarithmic axis; it is drawn here."""
UPPER = 0.9
"""Share of the completions that are at most as long as the upper edge of the band of lengths."""


def kl(run: Run) -> Chart:
    """The KL to the reference."""
    trace = run.trace
    step, value = _column(trace, "kl")
    made = figure([points(step, value, "mean per trained token")], y="KL (nat per token)")
    if "kl_max" in trace.steps:
        at, largest = _column(trace, "kl_max")
        line = points(at, largest, "largest of one token", MUTED, visible="legendonly")
        made["data"].append(line)
    log = logarithmic(made, np.append(value, BROKEN))
    level(made, BROKEN, f"suspected above {BROKEN:g}")
    left_out = log and bool((value <= 0).any())
    return Chart(
        id="kl",
        title="How far is the policy from its reference?",
        healthy="exactly 0 at step 1, then a slow rise; in healthy runs at most 0.084 nat per "
        "token in the last third.",
        figure=made,
        note="Steps with a KL of 0 are not on the logarithmic axis." if left_out else "",
    )


def entropy(run: Run) -> Chart:
    """How sure the policy is."""
    step, value = _column(run.trace, "entropy")
    return Chart(
        id="entropy",
        title="How sure is the policy of its tokens?",
        healthy="a slow fall as it learns. A drop to 0 within steps leaves groups without "
        "differences; a rise means that noise is learnt.",
        figure=figure([points(step, value, "mean per token", SERIES[2])], y="entropy (nat)"),
    )


def gradient(run: Run) -> Chart:
    """The norm of the gradient before clipping."""
    trace = run.trace
    step, value = _column(trace, "grad_norm")
    made = figure([points(step, value, "before clipping", SERIES[1])], y="norm of the gradient")
    logarithmic(made, value)
    limit = trace.settings.get("max_grad_norm")
    if isinstance(limit, int | float) and limit > 0:
        level(made, float(limit), f"clipped above {limit:g}")
    return Chart(
        id="gradient",
        title="Is there a gradient, and is it bounded?",
        healthy="above 0 at every step, within a factor of ten of its usual size. All steps far "
        "above the clipping line means that the rate in force is not the one you set.",
        figure=made,
    )


def gap(run: Run) -> Chart:
    """Sampler against trainer by place in the rollout."""
    steps = logprobs.some_steps(run.trace, most=GAP_STEPS)
    if not steps:
        raise NotRecorded("tokens.sampler")
    gaps = logprobs.recorded(run.trace, steps)
    at = np.array([step for step, _ in gaps.place])[gaps.rollout]
    made = figure([], y="mean |trainer - sampler| (nat)")
    for color, (name, where) in zip(SERIES, _classes(gaps).items(), strict=False):
        if where.any():
            made["data"].append(_gap_line(gaps, where, at, name, color))
    drawn = [y for line in made["data"] for y in line["y"] if y is not None]
    logarithmic(made, np.array([*drawn, logprobs.ROUNDING]), always=True)
    level(made, logprobs.ROUNDING, "rounding of float32", MUTED)
    many = len(run.trace.token_steps)
    told = f"{len(steps)} of {many:,} steps, evenly chosen. " if len(steps) < many else ""
    return Chart(
        id="gap",
        title="Do sampler and trainer give a token the same probability?",
        healthy="all lines at rounding: below 1e-4 nat in float32, where healthy runs show about "
        "1e-6 (bf16 rounds to about 1e-2). Above it, the trainer scores something else.",
        figure=made,
        note=f"{told}Trained tokens of the model, by their place; intervals over prompts.",
    )


def lengths(run: Run) -> Chart:
    """How long completions are."""
    trace = run.trace
    step, value = _column(trace, "completion_length")
    made = figure([], y="tokens of the completion")
    if "completion_tokens" in trace.rollouts:
        made["data"].append(_length_band(trace))
    made["data"].append(points(step, value, "mean", SERIES[5]))
    limit = trace.settings.get("max_completion_length")
    largest = spans(value)[1]
    if isinstance(limit, int | float) and largest > 0.4 * limit:
        level(made, float(limit), f"limit {limit:g}")
    far = f" The limit of {limit:g} is far above." if limit and largest <= 0.4 * limit else ""
    return Chart(
        id="lengths",
        title="How long are the completions?",
        healthy=f"steady, and well below the limit.{far}",
        figure=made,
    )


def truncation(run: Run) -> Chart:
    """How many completions a limit ended."""
    step, value = _column(run.trace, "truncated_share")
    made = figure([points(step, value, "share of rollouts", SERIES[4])], y="share of rollouts")
    made["layout"]["yaxis"]["range"] = [0, max(0.4, 1.1 * spans(value)[1])]
    level(made, CUT, f"suspected above {CUT:.0%}")
    return Chart(
        id="truncation",
        title="How many completions are cut off?",
        healthy="few: at most 0.036 of all in healthy runs. A cut answer earns nothing, whatever "
        "it would have been.",
        figure=made,
    )


def _column(trace: Trace, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values where there is a value."""
    value = trace.steps[name]
    known = np.isfinite(value)
    return trace.steps["step"][known], value[known]


def _classes(gaps: logprobs.Gaps) -> dict[str, np.ndarray]:
    """Places where different faults show: what stands in front of a token decides its gap."""
    first_turn, opening = gaps.turn == 0, gaps.first_of_turn
    return {
        "first token": first_turn & opening,
        "rest of the first turn": first_turn & ~opening,
        "first token after a tool": ~first_turn & opening,
        "rest of later turns": ~first_turn & ~opening,
    }


def _gap_line(
    gaps: logprobs.Gaps, where: np.ndarray, at: np.ndarray, name: str, color: str
) -> Figure:
    size = np.abs(gaps.gap)
    steps = np.unique(at[where])
    rows = [where & (at == step) for step in steps]
    estimates = [_above_zero(logprobs.mean_over(size[row], gaps.prompt[row])) for row in rows]
    found = Means(at=steps, estimates=estimates)
    line = points(found.at, found.value, name, color)
    line["error_y"] = error_bars(estimates) | {"color": see_through(color, 0.5)}
    return line


def _above_zero(one: Estimate) -> Estimate:
    """For a logarithmic axis: nothing at or below 0."""
    value = max(one.value, SMALLEST_GAP)
    return Estimate(value, max(one.low, SMALLEST_GAP), max(one.high, value), one.n)


def _length_band(trace: Trace) -> Figure:
    step, length = trace.rollouts["step"], trace.rollouts["completion_tokens"]
    steps = np.unique(step)
    order = np.argsort(step, kind="stable")
    rows = np.split(length[order], np.searchsorted(step[order], steps[1:]))
    edges = np.array([_edges(row) for row in rows])
    return band(steps, edges[:, 0], edges[:, 1], "nine of ten rollouts", SERIES[5])


def _edges(lengths_of_step: np.ndarray) -> tuple[float, float]:
    known = finite(lengths_of_step)
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - UPPER) / 2, (1 + UPPER) / 2])
    return float(low), float(high)
