"""Which hypotheses are asked, and from where on they alarm: all, or as the project's file says."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flatline.diagnosis.found import weight
from flatline.errors import ConfigError
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.project import Said, project


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is asked."""

    hypotheses: Sequence[Hypothesis]
    times: dict[str, Said] = field(default_factory=dict)
    """Code -> how many times beyond its threshold a suspect must be."""
    remarks: tuple[str, ...] = ()
    """What a report must say of it."""

    def judged(self, finding: Finding) -> Finding:
        """A suspect that is not far enough beyond its threshold is a note; a fault stays one."""
        asked = self.times.get(finding.hypothesis)
        if asked is None or finding.level is not Level.SUSPECT or weight(finding) >= asked.value:
            return finding
        text = (
            f"{finding.text} That is {finding.severity:.2g} times its threshold; {asked.place} "
            f"asks for {asked.value:g}."
        )
        return replace(finding, level=Level.NOTE, text=text, meaning="", fix="", explains=())


def chosen(given: Sequence[Hypothesis] | None) -> Chosen:
    """What is given, whatever the project says; all but what it switches off where none is."""
    if given is not None:
        return Chosen(hypotheses=given)
    said = project()
    off = {_found(key, one).id: one for key, one in said.off.items()}
    times = {_found(key, one).id: one for key, one in said.thresholds.items()}
    return Chosen(
        hypotheses=[one for one in HYPOTHESES if one.id not in off],
        times=times,
        remarks=tuple(
            f"{code} {find(code).name} is switched off by {why.place}: {why.value}"
            for code, why in off.items()
        ),
    )


def _found(key: str, said: Said) -> Hypothesis:
    try:
        return find(key)
    except ConfigError as error:
        raise ConfigError(f"{said.place}: {error}") from error
