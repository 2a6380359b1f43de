"""Whether the loss of a watched loop pushes where the rewards point.

Any baseline leaves the weight of a row a rising line of its reward inside a prompt. A falling one
makes what is rewarded less likely. Why is seen where rows are trained again after an update: the
ratio new / old makes the weight of a token grow with its new log-prob, nat for nat, and the ratio
old / new makes it shrink as fast. `flatline.watch` records that slope.
"""

from contextlib import suppress

import numpy as np

from flatline.errors import Lacking, NotRecorded
from flatline.hypotheses.row_weights import Weighed, weighed
from flatline.live.stage_found import StageFound, unknown
from flatline.trace import Trace
from flatline.trace.memo import once

FEWEST_STEPS = 3
"""Steps whose new rollouts must show it."""
FEWEST_GROUPS = 8
"""Groups of different rewards that must show it."""
ALL = 0.98
"""Share of these in which weights must fall with the reward. Healthy: 0."""
AGAIN = 2
"""Steps that must have trained rows again."""
UPSIDE_DOWN = (-1.2, -0.8)
"""Slope of old / new. Healthy: 1 with a ratio, 0 without one."""
COSTS = "If `watch.rewards` was given costs, give it their negatives."


def of_watched_ratio(trace: Trace) -> StageFound:
    """What rows that are trained again show of the ratio."""
    if trace.run.get("source") != "watch":
        raise Lacking("the trainer itself", "`flatline.checkup(trainer)` asks it")
    slopes = _slopes(trace)
    if len(slopes) < AGAIN:
        return unknown("ratio and KL", "No rows were seen to be trained again after an update.")
    slope = float(np.median(slopes))
    text = (
        f"When a token is trained again after an update, its weight changes by {slope:+.2f} nats "
        "for each nat that it became more likely"
    )
    down = UPSIDE_DOWN[0] <= slope <= UPSIDE_DOWN[1]
    if not (down and falls(trace)):
        return StageFound(stage="ratio and KL", departs=False, text=f"{text}.", measured=slope)
    return StageFound(
        stage="ratio and KL",
        departs=True,
        text=f"{text}: the ratio in the loss is old / new and not new / old. Its value is 1 at "
        "first, and its gradient has the opposite sign: completions that earn more are made less "
        "likely in every group.",
        measured=slope,
        direct=True,
        expected="+1",
        fix="Write `torch.exp(new_logps - old_logps)`.",
        headline="The ratio in your loss is upside down, so what is rewarded becomes less likely.",
    )


def of_watched_signs(trace: Trace) -> StageFound | None:
    """Weights that fall with the reward, where no ratio says why."""
    if trace.run.get("source") != "watch" or not falls(trace):
        return None
    if of_watched_ratio(trace).departs:
        return None
    one = next(one for one in weighed(trace) if _falling(one))
    return StageFound(
        stage="advantages",
        departs=True,
        text="In every group the completions that earn more have the smaller weight in the loss: "
        "what is rewarded is made less likely.",
        examples=(
            f"step {one.step}: rewards {_first(one.reward)}, weights of a token "
            f"{_first(one.weight)}",
        ),
        direct=True,
        expected="weights that rise with the reward",
        fix="Look for a missing minus in the loss, for a baseline minus the reward, and for a "
        f"ratio `exp(old - new)`. {COSTS}",
        headline="Your loss pushes against your rewards.",
    )


@once
def falls(trace: Trace) -> bool:
    """Whether the weight of rows falls with their reward in practically every group."""
    with suppress(NotRecorded):
        found = [signs for one in weighed(trace) if (signs := _falling(one))]
        every = [sign for signs in found for sign in signs]
        enough = len(found) >= FEWEST_STEPS and len(every) >= FEWEST_GROUPS
        return enough and float(np.mean(every)) >= ALL
    return False


def _falling(one: Weighed) -> list[bool]:
    """Of each group whose rewards and weights differ: whether the one falls with the other."""
    found = []
    for group in np.unique(one.group):
        rows = (one.group == group) & np.isfinite(one.weight) & np.isfinite(one.reward)
        reward, weight = one.reward[rows], one.weight[rows]
        if rows.sum() > 1 and np.ptp(reward) > 0 and np.ptp(weight) > 0:
            found.append(bool(np.cov(reward, weight)[0, 1] < 0))
    return found


def _slopes(trace: Trace) -> np.ndarray:
    with suppress(NotRecorded):
        found = trace.metric("ratio_slope")
        return np.asarray(found[np.isfinite(found)])
    return np.zeros(0)


def _first(values: np.ndarray) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in values[:8])}, ...]"
