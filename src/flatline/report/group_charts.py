"""Charts of what GRPO compares: the rollouts of one prompt, group by group."""

import numpy as np

from flatline.hypotheses.groups import RewardGroups, reward_groups, within_correlation
from flatline.hypotheses.h01_advantage_scaling import CRUMBS
from flatline.hypotheses.h05_reward_signal import FOLLOWS
from flatline.hypotheses.h32_zero_variance_groups import DEAD
from flatline.hypotheses.right import right_part
from flatline.report.charts import SERIES, Chart, Figure, figure, label, level, plain, points
from flatline.report.reward_charts import part_names
from flatline.report.series import SAMPLED_GROUPS, Run, sampled


def part_covariance(run: Run) -> Chart:
    """What differs together inside groups: the only differences that GRPO learns from."""
    trace = run.trace
    names = part_names(trace)
    columns = [trace.rollouts["reward"], *(trace.parts()[name] for name in names)]
    group = trace.groups().index
    size = len(columns)
    corr, text = np.full((size, size), np.nan), [[""] * size for _ in range(size)]
    hover = [[""] * size for _ in range(size)]
    for row in range(size):
        for column in range(row + 1):
            estimate = within_correlation(columns[row], columns[column], group)
            corr[row, column] = estimate.value
            text[row][column] = f"{estimate.value:.2f}" if estimate.n else ""
            covariance = _covariance(columns[row], columns[column], group)
            hover[row][column] = (
                f"correlation {estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]\n"
                f"covariance {covariance:.4g}\n{estimate.n} groups in which both differ"
            )
    labels = ["reward", *(label(name) for name in names)]
    right = right_part(trace)
    made = _heat(corr, text, hover, labels)
    return Chart(
        id="part-covariance",
        title="What decides which rollout of a group is best?",
        healthy=f"the reward goes with {right or 'the part that says right or wrong'}: above "
        f"{FOLLOWS}, in healthy runs at least 0.96.",
        figure=made,
        note="Correlation inside groups; the covariance is in the hover text. Empty: one of the "
        "two never differs inside a group.",
        by_step=False,
    )


def advantage(run: Run) -> Chart:
    """How strongly a group pulls, against how much its rewards differ."""
    trace = run.trace
    groups = reward_groups(trace)
    known = [np.isfinite(one) for one in trace.groups().each("reward")]
    advantages = trace.groups().each("advantage")
    strongest = np.array(
        [
            np.nanmax(np.abs(one), initial=0.0)
            for one, k in zip(advantages, known, strict=True)
            if k.sum() > 1
        ]
    )
    chosen = sampled(groups.n, SAMPLED_GROUPS)
    made = figure(
        [_cloud(groups, strongest, chosen)],
        x="standard deviation of the rewards inside the group",
        y="largest |advantage| of the group",
    )
    few = f"{len(chosen):,} of {groups.n:,} groups, chosen at random."
    crumbs = f" Left of {CRUMBS * groups.span:.3f} rewards differ by crumbs." if groups.span else ""
    return Chart(
        id="advantage",
        title="Do groups pull because their rewards differ?",
        healthy="most groups lie well to the right. With scaling by group all differing groups "
        f"pull equally, so a crowd at the left edge teaches noise.{crumbs}",
        figure=made,
        note=few if len(chosen) < groups.n else "",
        by_step=False,
    )


def zero_variance(run: Run) -> Chart:
    """Groups that teach nothing."""
    trace = run.trace
    step, share = trace.steps["step"], trace.steps["zero_std_share"]
    known = np.isfinite(share)
    made = figure(
        [points(step[known], share[known], "share of groups", SERIES[3])], y="share of groups"
    )
    made["layout"]["yaxis"]["range"] = [0, 1.02]
    level(made, DEAD, f"suspected above {DEAD:.0%}")
    return Chart(
        id="zero-variance",
        title="How many groups have nothing to compare?",
        healthy="below 0.41 in healthy runs; it grows late, when problems are solved.",
        figure=made,
    )


def _covariance(a: np.ndarray, b: np.ndarray, group: np.ndarray) -> float:
    """Mean over rollouts of the product of what is off the group's mean."""
    known = np.isfinite(a) & np.isfinite(b)
    if not known.any():
        return float("nan")
    index = np.unique(group[known], return_inverse=True)[1]
    size = np.bincount(index)
    off = [x[known] - (np.bincount(index, x[known]) / size)[index] for x in (a, b)]
    return float((off[0] * off[1]).mean())


def _heat(
    values: np.ndarray, text: list[list[str]], hover: list[list[str]], labels: list[str]
) -> Figure:
    heat = {
        "type": "heatmap",
        "x": labels,
        "y": labels,
        "z": [plain(row) for row in values],
        "text": text,
        "customdata": hover,
        "hovertemplate": "%{y} with %{x}\n%{customdata}",
        "zmin": -1,
        "zmax": 1,
    }
    made = figure([heat], x="", y="")
    return made


def _cloud(groups: RewardGroups, strongest: np.ndarray, chosen: np.ndarray) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "a group",
        "x": plain(groups.std[chosen]),
        "y": plain(strongest[chosen]),
        "customdata": groups.step[chosen].tolist(),
        "hovertemplate": "step %{customdata}\nstd %{x}\n|advantage| %{y}",
        "marker": {"color": SERIES[0], "size": 5, "opacity": 0.45},
    }
