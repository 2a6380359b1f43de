"""What the trainer would have learnt from: advantages recomputed from the stored rewards.

An update is the sum over rollouts of advantage times gradient. Under another rule (no division by
the spread, one part of the reward alone, a fixed parser) the gradients of the stored rollouts stay
what they are and only the advantages change. So the cosine between the advantages that were trained
on and those of the other rule says how much of the other update the run has made: at 0.8 it made
four fifths of it. A run that keeps four fifths of a step does not go flat for want of the rest.

The cosine is over all rollouts of the run. Its interval is a jackknife over groups, since rollouts
of one group are not independent, after Fisher's transform. See docs/design/replay.md.
"""

import math

import numpy as np

from flatline.hypotheses.base import Replay
from flatline.hypotheses.groups import EQUAL, correlation_estimate
from flatline.stats import UNKNOWN, Estimate
from flatline.trace import Trace

SAME = 0.8
"""Cosine whose low end decides that a rule is not the cause. In the lab: 0.35 and less where the
fault of the hypothesis is planted, 0.72 to 1 in healthy runs; see docs/design/replay.md."""
FEWEST = 8
"""Groups that must say something: a step or two of a usual run."""
CLOSEST = 1e-12
"""Distance from 1 below which Fisher's transform would be infinite."""
EPSILON = 1e-4
"""What GRPO adds to a spread before it divides by it."""


def trained(trace: Trace) -> np.ndarray:
    """The advantages that were trained on; 0 where a rollout has none that is a number."""
    found = trace.rollouts["advantage"]
    return np.where(np.isfinite(found), found, 0.0)


def advantages(trace: Trace, reward: np.ndarray, *, scaling: str | None = None) -> np.ndarray:
    """What GRPO makes of a reward: less the group's mean, over a spread; 0 where it is unknown.

    The spread is the run's own choice unless `scaling` says `group`, `batch` or `none`.
    """
    scaling = trace.settings.get("scale_rewards", "group") if scaling is None else scaling
    index = trace.groups().index
    known = np.isfinite(reward)
    filled = np.where(known, reward, 0.0)
    size = np.bincount(index, known)
    mean = np.bincount(index, filled) / np.maximum(size, 1)
    centred = np.where(known, filled - mean[index], 0.0)
    if scaling in ("none", False):
        return centred
    if scaling == "batch":
        return centred / (_spread(filled, known, trace.rollouts["step"]) + EPSILON)
    return centred / (_spread(filled, known, index) + EPSILON)


def agreement(a: np.ndarray, b: np.ndarray, group: np.ndarray) -> Estimate:
    """Cosine of two rules' advantages; `n` counts groups in which either says anything."""
    index = np.unique(group, return_inverse=True)[1]
    aa, bb, ab = (np.bincount(index, product) for product in (a * a, b * b, a * b))
    says = aa + bb > EQUAL**2
    aa, bb, ab = aa[says], bb[says], ab[says]
    if not aa.any() or not bb.any():
        return UNKNOWN
    value = float(_cosine(aa.sum(), bb.sum(), ab.sum()))
    without_one = np.arctanh(_cosine(aa.sum() - aa, bb.sum() - bb, ab.sum() - ab))
    n = len(without_one)
    error = math.sqrt((n - 1) * float(without_one.var()))
    return correlation_estimate(value, n, error)


def decide(
    found: Estimate, rule: str, *, told: str = "", unit: str = "groups", enough: bool = True
) -> Replay:
    """What the agreement with a rule decides; `enough` is what else must hold for it to do so."""
    decided = found.n >= FEWEST and found.low > SAME and enough
    return Replay(
        decided=decided,
        text=f"{rule}, {_said(found, unit, decided)}{' ' if told else ''}{told}",
        agreement=found,
    )


def _said(found: Estimate, unit: str, decided: bool) -> str:
    if found.n < FEWEST or not np.isfinite(found.value):
        return f"too little can be compared: {found.n} {unit}, of {FEWEST} that are needed."
    if decided:
        end = "the updates would have been nearly the same, so this does not make a reward flat"
    elif found.high < SAME:
        end = "the updates would have been different; only training shows whether they are better"
    else:
        end = "that decides nothing"
    return (
        f"the advantages agree with those trained on by a cosine of {found.value:.2f} "
        f"[{found.low:.2f}, {found.high:.2f}] over {found.n} {unit}: {end}."
    )


def _spread(values: np.ndarray, known: np.ndarray, units: np.ndarray) -> np.ndarray:
    """The standard deviation (ddof 1) inside each unit, at every value."""
    index = np.unique(units, return_inverse=True)[1]
    size = np.bincount(index, known)
    mean = np.bincount(index, values) / np.maximum(size, 1)
    off = np.where(known, values - mean[index], 0.0)
    variance = np.bincount(index, off**2) / np.maximum(size - 1, 1)
    return np.asarray(np.sqrt(variance)[index])


def _cosine(aa: np.ndarray, bb: np.ndarray, ab: np.ndarray) -> np.ndarray:
    """Cosine from sums of squares and products; 0 where a side is empty, never quite 1."""
    scale = np.sqrt(np.maximum(aa, 0.0) * np.maximum(bb, 0.0))
    value = np.where(scale > EQUAL**2, ab / np.maximum(scale, EQUAL**2), 0.0)
    return np.asarray(np.clip(value, CLOSEST - 1, 1 - CLOSEST))
