"""What finished cells came to, read back from their `cell.json`, or from a file that packs many."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.cell import CHECKUP, DIAGNOSE, RESULT_FILE, UNTAKEN
from bench.pack import unpacked
from bench.plan import Cell, Kind
from bench.pool import CELLS, read_result
from bench.setups import twin_of
from flatline.errors import ConfigError
from flatline.hypotheses.base import Finding, Level

_NOWHERE = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One answer of flatline about one run."""

    findings: tuple[Finding, ...]
    """Alarms, most likely cause first, with what they are ranked by and without their words."""
    texts: tuple[str, ...]
    """What the first few say."""
    asked: int
    """Hypotheses that were asked."""
    unknown: int
    """Of these, could not tell."""
    defects: tuple[str, ...]
    """Hypotheses that tripped over the run: a defect of flatline."""
    seconds: float
    """Wall time, with the building of the trainer in a checkup."""

    @property
    def alarms(self) -> tuple[str, ...]:
        """Hypotheses, most likely cause first."""
        return tuple(finding.hypothesis for finding in self.findings)

    def names(self, codes: Collection[str], k: int) -> bool:
        """Whether one of the codes is among the first k alarms."""
        return any(code in codes for code in self.alarms[:k])


SILENT = Look(findings=(), texts=(), asked=0, unknown=0, defects=(), seconds=0.0)
"""Stands for a look that could not be taken: it misses a fault, and clears no healthy run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One finished cell."""

    cell: Cell
    """What was run."""
    folder: Path
    """Where it lies."""
    checkup: Look
    """Before training."""
    diagnoses: Mapping[int, Look]
    """After so many steps."""
    ablation: Mapping[str, Look]
    """At the end, from less than everything."""
    seconds_until: Mapping[int, float | None]
    """Training time up to a step."""
    heldout: Mapping[str, Any] | None
    """Held-out reward play by play; None where training did not reach its end."""
    failure: str | None
    """How the training, or the whole process, went down."""
    versions: Mapping[str, str]
    """Of what it ran with."""
    untaken: frozenset[str] = frozenset()
    """Looks that nobody took, which count neither for nor against flatline."""
    peers: Mapping[str, Any] = field(default_factory=dict)
    """Answers of other tools that were packed with the cell."""

    @property
    def looks(self) -> dict[str, Look]:
        """Every look that was taken at all that there is, by name."""
        later = {f"diagnose {step}": look for step, look in sorted(self.diagnoses.items())}
        return {CHECKUP: self.checkup, **later} if self.before else later

    @property
    def before(self) -> list[Look]:
        """The checkup, where one was taken."""
        return [] if CHECKUP in self.untaken else [self.checkup]

    @property
    def end(self) -> list[Look]:
        """The diagnosis of the whole run, where it was taken."""
        return [] if DIAGNOSE in self.untaken else [self.last]

    @property
    def last(self) -> Look:
        """The diagnosis of the whole run."""
        return self.diagnoses[max(self.diagnoses)] if self.diagnoses else SILENT

    @property
    def after(self) -> float | None:
        """Mean held-out reward at the end."""
        return _mean(self.heldout["after"]) if self.heldout else None

    @property
    def learnt(self) -> bool:
        """Whether held-out reward certainly rose."""
        gain = self.heldout["gain"]["low"] if self.heldout else None
        return gain is not None and gain > 0


def read_all(out: Path) -> list[Outcome]:
    """Every finished cell of a benchmark, from its folder or from what `bench pack` wrote."""
    if out.is_file():
        return [_outcome_of(facts, out, out.parent / _NOWHERE) for facts in unpacked(out)]
    paths = sorted((out / CELLS).glob(f"*/{RESULT_FILE}"))
    if not paths:
        raise ConfigError(
            f"{out} holds no finished cell of a benchmark.\nThere is nothing to report on.\n"
            f"Type `flatline bench --out {out}`."
        )
    return [_outcome_of(read_result(path), path, path.parent) for path in paths]


def _outcome_of(facts: Mapping[str, Any], path: Path, folder: Path) -> Outcome:
    try:
        return _outcome(facts, folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} does not hold the result of a cell: {type(error).__name__} {error}.\n"
            "Remove its folder; `flatline bench` runs the cell again."
        ) from error


def _outcome(facts: Mapping[str, Any], folder: Path) -> Outcome:
    until = facts.get("seconds_until", {})
    return Outcome(
        cell=_unlike_calibration(Cell.from_json(facts["cell"])),
        folder=folder,
        checkup=_look(facts.get("checkup", {})),
        diagnoses={int(step): _look(one) for step, one in facts.get("diagnose", {}).items()},
        ablation={name: _look(one) for name, one in facts.get("ablation", {}).items()},
        seconds_until={int(step): seconds for step, seconds in until.items()},
        heldout=facts.get("heldout"),
        failure=_failure(facts),
        versions=facts.get("versions", {}),
        untaken=frozenset(facts.get(UNTAKEN, ())),
        peers=facts.get("peers", {}),
    )


def _unlike_calibration(cell: Cell) -> Cell:
    """The cell; a held-out one that calibration has too is none, in whatever folder it lies."""
    repeated = cell.kind is Kind.HELD_OUT and twin_of(cell.changes)
    return replace(cell, kind=Kind.REPEATED) if repeated else cell


def _look(facts: Mapping[str, Any]) -> Look:
    if "alarms" not in facts:
        return SILENT
    return Look(
        findings=tuple(map(_finding, facts["alarms"], facts["levels"], facts["ranking"])),
        texts=tuple(facts["texts"]),
        asked=int(facts["asked"]),
        unknown=len(facts["unknown"]),
        defects=tuple(facts["defects"]),
        seconds=float(facts["seconds"]),
    )


def _finding(code: str, level: str, ranking: Mapping[str, Any]) -> Finding:
    severity = ranking["severity"]
    return Finding(
        hypothesis=code,
        name=code,
        level=Level(level),
        text="",
        severity=math.inf if severity is None else float(severity),
        explains=tuple(ranking["explains"]),
        proven=bool(ranking["proven"]),
    )


def _failure(facts: Mapping[str, Any]) -> str | None:
    if "crash" in facts:
        crash = facts["crash"]
        return f"process ended with {crash['exit_code']}: {' '.join(crash['tail'][-1:])}"
    failure = facts["training"].get("failure")
    return None if failure is None else str(failure)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
