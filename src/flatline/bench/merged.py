"""The single answer of a user who asked twice: checkup and diagnosis as one ranked list.

`diagnosis.rank` orders it, as it orders each of the two. Of a hypothesis that alarms in both looks
the surer alarm stands. What `rank` reads and a finished cell does not keep is filled in: what an
alarm explains comes from its hypothesis as it is today, "seen directly" from a look that called it
a cause although another of its alarms explains it, and the severity from its place in its look.
"""

from collections.abc import Iterator, Sequence

from flatline.bench.results import Look
from flatline.diagnosis import rank
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Finding, Level

_EXPLAINS = {one.id: one.explains for one in HYPOTHESES}
_ORDER = list(Level)


def merged(looks: Sequence[Look]) -> tuple[str, ...]:
    """Hypotheses that alarm in one of the looks, most likely cause first."""
    surest: dict[str, Finding] = {}
    for finding in sorted((one for look in looks for one in _findings(look)), key=_surer):
        surest.setdefault(finding.hypothesis, finding)
    return tuple(finding.hypothesis for finding in rank(surest.values()))


def _surer(finding: Finding) -> tuple[int, float]:
    return _ORDER.index(finding.level), -finding.severity


def _findings(look: Look) -> Iterator[Finding]:
    for place, (code, level) in enumerate(zip(look.alarms, look.levels, strict=True), 1):
        explained = any(code in _explains(other) for other in look.alarms)
        yield Finding(
            hypothesis=code,
            name=code,
            level=Level(level),
            text="",
            severity=1 / place,
            explains=_explains(code),
            proven=explained and code in look.causes,
        )


def _explains(code: str) -> tuple[str, ...]:
    return _EXPLAINS.get(code, ())
