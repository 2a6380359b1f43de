"""Did a change hurt? Its reward against that of the unchanged run of the same seed.

Of twenty faults that do nothing, one has an interval above 0 by chance. So the p-values of all
planted faults are corrected together (Benjamini-Hochberg): of those called hurtful, one in twenty
is expected not to be.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np

from flatline.stats import LEVEL, Estimate, t_score
from flatline.tails import students

Key = TypeVar("Key")

FEWEST_SEEDS = 3
"""Student's interval of two seeds is thirteen standard errors wide: it says nothing."""
FALSE_DISCOVERIES = 1 - LEVEL
"""Share of the faults called hurtful that may be called so by chance."""


class Verdict(StrEnum):
    """Whether a fault hurt."""

    HURTS = "hurts"
    """Held-out reward was lost, certain after the correction, or training broke down."""
    UNCORRECTED = "hurts before correction"
    """Its own interval lies above 0, but among so many faults that may be chance."""
    HARMLESS = "not shown to hurt"
    """The interval of the loss holds 0."""
    OPEN = "nothing to compare with"
    """The healthy run of its seed is not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What one fault cost on one task, over its seeds."""

    verdict: Verdict
    """Whether it hurt."""
    lost: Estimate
    """Healthy minus faulty held-out reward."""
    unit: str
    """What `lost.n` counts: seeds or problems."""
    by_seed: Mapping[int, float]
    """What was lost with each seed."""
    p: float | None
    """Two-sided p-value of no loss at all; None where nothing was compared."""
    corrected: float | None = None
    """The same, corrected for the number of faults that were planted."""


def corrected(found: dict[Key, Harm]) -> dict[Key, Harm]:
    """The same with the correction, which needs all of them."""
    tested = {key: one.p for key, one in found.items() if one.p is not None}
    if not tested:
        return found
    chances = dict(zip(tested, _together(list(tested.values())), strict=True))
    return found | {key: _judged(found[key], p) for key, p in chances.items()}


def _together(chances: list[float]) -> list[float]:
    """P-values after Benjamini and Hochberg: the least share of false discoveries among so many
    with which each would still be one."""
    order = np.argsort(chances)[::-1]
    shares = np.asarray(chances)[order] * len(chances) / np.arange(len(chances), 0, -1)
    found = np.empty(len(chances))
    found[order] = np.minimum.accumulate(shares).clip(max=1.0)
    return [float(one) for one in found]


def _judged(harm: Harm, corrected: float) -> Harm:
    sure = harm.verdict is Verdict.UNCORRECTED and corrected <= FALSE_DISCOVERIES
    return replace(harm, corrected=corrected, verdict=Verdict.HURTS if sure else harm.verdict)


def student_p(lost: Estimate) -> float:
    """The error level at which Student's interval would just reach 0."""
    half = lost.high - lost.value
    return p_value(lost.value / half, lost.n) if half else 1.0


def p_value(widths: float, n: int) -> float:
    """Of a mean that is so many half widths of its interval away from 0."""
    return students(widths * t_score(n - 1, LEVEL), n - 1)
