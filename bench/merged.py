"""The single answer of a user who asked twice: checkup and diagnosis as one ranked list.

`diagnosis.rank` orders it, as it orders each of the two. Of a hypothesis that alarms in both looks
the surer alarm stands.
"""

from collections.abc import Sequence

from bench.results import Look
from flatline.diagnosis.report import rank
from flatline.hypotheses.base import Finding, Level


def merged(looks: Sequence[Look]) -> tuple[Finding, ...]:
    """Alarms of all the looks, most likely cause first."""
    surest: dict[str, Finding] = {}
    for finding in sorted((one for look in looks for one in look.findings), key=_surer):
        surest.setdefault(finding.hypothesis, finding)
    return tuple(rank(surest.values()))


def _surer(finding: Finding) -> tuple[int, float]:
    return list(Level).index(finding.level), -finding.severity
