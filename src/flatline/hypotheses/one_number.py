"""A reward that is one number throughout, in words; and whether rewards differ, as a log says.

No noise makes a mean repeat to the last digit: where the reward of every row is the same, most
likely every completion earned the same, and without rewards that differ there is no advantage.
"""

import numpy as np

from flatline.trace import Trace

NOTHING = 1e-6
"""A spread of rewards below it is rounding."""


def one_number_in_words(trace: Trace) -> str:
    """What is true of a training reward that is one number, as the end of a sentence."""
    if len(trace.rollouts):
        return _of_rollouts(trace)
    reward = trace.steps["reward"]
    reward = reward[np.isfinite(reward)]
    told = f"is {_the_same(reward)} in all {len(reward)} rows"
    if rewards_differ(trace):
        return f"{told}, though the log says that rewards differ: it does not show how they go"
    return f"{told}: no rewards that differ show in it, and without these nothing can be learnt"


def _of_rollouts(trace: Trace) -> str:
    reward, groups = trace.rollouts["reward"], trace.groups().known("reward")
    reward = reward[np.isfinite(reward)]
    if np.ptp(reward) <= NOTHING:
        told = f"is {_the_same(reward)} in all {len(reward)} rollouts"
        return f"{told}: no group has rewards that differ, so nothing can be learnt from it"
    means = groups.each(lambda rows: rows.mean(axis=-1))
    means = means[np.isfinite(means)]
    told = f"is {_the_same(means)} in all {len(means)} groups on average"
    return f"{told}, though rewards differ inside groups"


def _the_same(values: np.ndarray) -> str:
    how = "exactly the same" if np.ptp(values) == 0 else "the same up to rounding"
    return f"{how}, {np.median(values):.6g},"


def rewards_differ(trace: Trace) -> bool:
    """Whether rewards differ, inside groups where the log says so."""
    steps = trace.steps
    dead = steps["zero_std_share"] if "zero_std_share" in steps else np.zeros(0)
    if np.isfinite(dead).any():
        return bool(np.nanmedian(dead) < 1)
    spread = [trace.metric(name) for name in trace.metric_names if name.endswith("reward_std")]
    return any(bool(np.nanmedian(each) > NOTHING) for each in spread if np.isfinite(each).any())
