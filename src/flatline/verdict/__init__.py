"""From matched runs to a verdict: validated, partial, invalidated or inconclusive.

Two things are asked of a cause. Its **mechanism** must be there in the control arm and go in the
treated one, and the **outcome** must move by enough to matter. Neither alone is a verdict: an
outcome moves for many reasons, and a real defect may cost nothing.

    criterion.py   the rule that is registered before the first run: looks, error rate, effect
    records.py     what goes into a verdict and what comes out
    ruling.py      `decide`: which case it is, and the two sentences that say so
    planning.py    before the first run: what this rule can detect

docs/verdicts.md has the rules in words and the error rates that `benchmarks/verdicts.py` measured.
"""

from flatline.verdict.criterion import Rule, effect_of, more_seeds
from flatline.verdict.planning import detectable, power
from flatline.verdict.records import (
    Confidence,
    Mechanism,
    NegativeControl,
    Presence,
    Ruling,
    Verdict,
)
from flatline.verdict.ruling import decide

__all__ = [
    "Confidence",
    "Mechanism",
    "NegativeControl",
    "Presence",
    "Rule",
    "Ruling",
    "Verdict",
    "decide",
    "detectable",
    "effect_of",
    "more_seeds",
    "power",
]
