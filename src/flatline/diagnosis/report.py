"""A trace -> what every hypothesis says about it, most likely cause first.

The order can be explained. Alarms come first. Among them, one that another alarm produces goes
behind its cause: a loss mask used as attention mask makes the KL explode, so an exploding KL is
its symptom and not a second cause. Then the surer level, then how far beyond its threshold a
finding is.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from flatline.diagnosis.answer import Answer, answer_of, headline_of, summary_of
from flatline.diagnosis.chosen import chosen
from flatline.diagnosis.found import Found, explained_by, weight
from flatline.diagnosis.lacking import NO_RUN_FILE, WHICH_IS_RIGHT, Origin, lack, more, origin_of
from flatline.diagnosis.outcome import Outcome, next_of, outcome_of, troubles_of
from flatline.diagnosis.renderers.console import plain, to_console
from flatline.diagnosis.renderers.notebook import to_html
from flatline.errors import ConfigError, Lacking, NotRecorded
from flatline.files import write_atomically
from flatline.hypotheses.base import ALARMS, Finding, HasSign, Hypothesis, Level
from flatline.hypotheses.departure import named_by_the_catalogue
from flatline.hypotheses.right import question
from flatline.hypotheses.trend import too_short
from flatline.hypotheses.wording import names_of, worded
from flatline.project import project
from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event, trend_told
from flatline.text import shortened, visible
from flatline.trace import Trace
from flatline.trace.folder import RUN_FILE
from flatline.trace.importers import open_log

LONGEST_ERROR = 200
"""Characters of an error that are quoted."""
_QUIET = np.errstate(all="ignore")
"""A log may hold any number, and the console is for findings."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(Found):
    """What was found, and what it comes to. `print(report)` and a notebook show it whole."""

    @property
    def troubles(self) -> list[Finding]:
        """What the run itself shows to be wrong, whatever its cause."""
        return troubles_of(self)

    @property
    def outcome(self) -> Outcome:
        """What it comes to."""
        return outcome_of(self)

    @property
    def next(self) -> str:
        """The one thing to do; empty where nothing is left to do."""
        return next_of(self)

    @property
    def summary(self) -> str:
        """The answer in a few sentences."""
        return summary_of(self)

    @property
    def answer(self) -> Answer:
        """The same in the order in which a person reads it."""
        return answer_of(self)

    def __str__(self) -> str:
        return plain(self)

    def __repr__(self) -> str:
        alarms = ", ".join(f"{one.hypothesis} {one.name}" for one in self.alarms)
        found = f"{self.outcome.value}: {alarms}" if alarms else self.outcome.value
        return f"<Report on {visible(self.subject)}: {found}; print it to read it>"

    def __rich__(self) -> RenderableType:
        """What a terminal shows."""
        return to_console(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return to_html(self)

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `--json` prints."""
        return {
            "version": 1,
            "subject": self.subject,
            "outcome": self.outcome.value,
            "headline": headline_of(self),
            "summary": self.summary,
            "next": self.next,
            "tested": self.tested,
            "trend": self.trend and self.trend.to_json(),
            "damaged": self.damaged,
            "troubles": [trouble.to_json() for trouble in self.troubles],
            "caveats": list(self.caveats),
            "put_back": self.put_back and self.put_back.to_json(),
            "remarks": list(self.remarks),
            "known": list(self.known),
            "explained_by": explained_by(self.findings),
            "findings": [finding.to_json() for finding in self.findings],
        }


@_QUIET
def diagnose(
    run: Trace | str | Path,
    *,
    correct: str | None = None,
    hypotheses: Sequence[Hypothesis] | None = None,
    name: str = "",
) -> Report:
    """What every hypothesis sees in a recorded run or a log, most likely cause first.

    `run` is what `flatline diagnose` takes: a run directory, or a log or rollouts of TRL, verl,
    prime-rl, OpenRLHF, NeMo-RL, SkyRL or verifiers; W&B, MLflow, TensorBoard, CSV or JSONL; or a
    `Trace`. `correct` names the part of the reward that says whether an answer is right, where the
    run does not say so itself. Without `hypotheses`, all are asked, as `flatline.toml` says.
    """
    trace = _opened(run)
    correct = correct or _named_by_project(trace)
    trace = trace if correct is None else trace.naming(correct)
    choice = chosen(hypotheses)
    origin = origin_of(trace.run)
    findings = [
        choice.judged(guarded(hypothesis, hypothesis.sign, trace, origin=origin))
        for hypothesis in choice.hypotheses
        if isinstance(hypothesis, HasSign)
    ]
    findings = named_by_the_catalogue(findings, choice.hypotheses)
    ended, broke_off = _ended(trace), visible(" ".join(trace.stops))
    caveats = [one for one in trace.caveats if visible(one) not in (ended, broke_off)]
    trend = trend_told(trace)
    short = None if trend else too_short(trace)
    return Report(
        subject=name or _name_of(run, trace),
        findings=tuple(rank(findings)),
        trend=trend,
        # Known once everything was read.
        caveats=(
            *choice.remarks,
            *caveats,
            *_without_run_file(findings),
            *([short] if short else []),
        ),
        damaged=bool(trace.warnings),
        ended=ended,
        broke_off=broke_off,
        made_no_step=_made_no_step(trace, origin),
        question=asked(findings, trace),
        remarks=remarks_of(trace),
        event=main_event(trace),
    )


def _opened(run: Trace | str | Path) -> Trace:
    if isinstance(run, Trace):
        return run
    if not isinstance(run, str | Path):
        raise ConfigError(
            f"A {type(run).__name__} is neither a path nor a `Trace`.\n"
            "A diagnosis reads what a run left on disk.\n"
            "Give its folder or its log; for a live trainer type `flatline.checkup(trainer)`."
        )
    return open_log(run)


def _named_by_project(trace: Trace) -> str | None:
    """The part that the project's file names, where this run has it and names none itself."""
    said = project().correct
    if said is None or trace.settings.get("correct") or not len(trace.rollouts):
        return None
    return str(said.value) if said.value in trace.parts() else None


def _name_of(run: Trace | str | Path, trace: Trace) -> str:
    return str(trace.run.get("name") or "this run") if isinstance(run, Trace) else str(run)


def asked(findings: Iterable[Finding], trace: Trace) -> str:
    """The question that some finding hangs on; empty where none does."""
    hangs = any(finding.needs == WHICH_IS_RIGHT.do for finding in findings)
    return question(trace) if hangs else ""


def _ended(trace: Trace) -> str:
    """That a training ended with an error, and where."""
    if trace.ending is not None and trace.ending.failed:
        return visible(str(trace.ending))
    error = str(trace.run.get("error") or "")
    if not error or not len(trace.steps):
        return ""
    last, planned = float(trace.steps["step"].max()), trace.settings.get("max_steps")
    if isinstance(planned, int) and 0 < planned <= last:
        return ""  # what fails while a run shuts down costs no step
    of = f" of {planned}" if isinstance(planned, int) and planned else ""
    said = shortened(visible(error).replace("`", "'"), limit=LONGEST_ERROR)
    return f"The log ends at step {last:g}{of} with an error: `{said}`."


def _without_run_file(findings: Iterable[Finding]) -> list[str]:
    """What a run whose `run.json` is missing can no longer be tested for."""
    lost = [f"{one.hypothesis} {one.name}" for one in findings if one.needs == NO_RUN_FILE.do]
    return [f"Not tested, since {RUN_FILE} is missing: {', '.join(sorted(lost))}."] if lost else []


def _made_no_step(trace: Trace, origin: Origin) -> bool:
    """Whether the optimizer never stepped. Row 0 is an evaluation before training."""
    counted = origin in (Origin.ATTACHED, Origin.RECORDER, Origin.WATCHED)
    if not counted or trace.warnings:  # a log has rows; what was lost may have been steps
        return False
    if "step" in trace.steps and (trace.steps["step"] > 0).any():
        return False
    # A loop of one's own may log rollouts alone; `attach` and `watch` log every step.
    return origin is not Origin.RECORDER or not len(trace.rollouts)


def save(report: Report, run: Path) -> None:
    """Keep the diagnosis beside the run it is about; a single log file is left alone."""
    if (run / RUN_FILE).is_file():
        with suppress(OSError):  # a run on a read-only disk can be diagnosed all the same
            write_atomically(run / "diagnosis.json", [json.dumps(report.to_json(), indent=2)])


@_QUIET
def guarded(
    hypothesis: Hypothesis, look: Callable[[Any], Finding], at: Any, *, origin: Origin
) -> Finding:
    """What a hypothesis finds; what it lacks, or its own mistake, is a finding that cannot tell."""
    try:
        found = look(at)
        found = replace(found, fix=worded(found.fix, names_of(at)))
    except Lacking as missing:
        text = f"Could not be tested: it needs {missing.column}."
        text = f"{text} {missing.how}." if missing.how else text
        return hypothesis.found(Level.UNKNOWN, text, needs=missing.how)
    except NotRecorded as missing:
        why, do = lack(origin, missing.column)
        text = f"Could not be tested: it needs `{missing.column}`, and {why}."
        return hypothesis.found(Level.UNKNOWN, f"{text} {do}." if do else text, needs=do)
    except Exception as error:
        # One hypothesis that trips over odd data must not cost the user all the others.
        return hypothesis.found(
            Level.UNKNOWN,
            f"Could not be tested: {type(error).__name__}: {error}. "
            "This is a defect of flatline; please report it.",
        )
    if found.level is Level.UNKNOWN and not found.needs:
        return replace(found, needs=more(origin))
    return found


def rank(findings: Iterable[Finding]) -> list[Finding]:
    """Most likely cause first."""
    listed = list(findings)
    explained = explained_by(listed)
    order = list(Level)

    def key(finding: Finding) -> tuple[bool, bool, int, float, str]:
        return (
            finding.level not in ALARMS,
            finding.hypothesis in explained,
            order.index(finding.level),
            -weight(finding),
            finding.hypothesis,
        )

    return sorted(listed, key=key)
