"""What a report comes to: one of four outcomes, and the one thing to do next.

Silence is not health. A run is called healthy where its reward certainly rises, or where every
common cause of a flat reward was tested and is absent. What the run itself shows to be wrong (no
step, a reward that falls or stays flat, a recording of which part is lost) is said as such, whether
or not a hypothesis explains it.
"""

from enum import StrEnum

from flatline.diagnosis.found import Found
from flatline.diagnosis.lacking import next_step
from flatline.hypotheses.base import Finding, Level

COMMON = {
    "H02": "the loss is on the wrong tokens",
    "H04": "answers are cut off",
    "H06": "the sampler does not run the trained weights",
    "H11": "other tokens are trained than were sampled",
    "H21": "the sampler's log-probs mean something else than the trainer's",
    "H24": "the learning rate is too low or too high",
    "H26": "the optimizer moves nothing",
    "H32": "too few groups have rewards that differ",
    "H33": "groups mix prompts",
    "H39": "right answers are paid as wrong",
}
"""The common causes. Of 87 public threads about runs that would not learn, sorted by cause, each
kind of cause that was confirmed (by a fix, a controlled repetition or a maintainer) at least three
times is here with the hypothesis that tests it, and H32 besides, without which there is nothing to
learn from. The threads are no random sample: they say what happens again and again, not how often.
One kind is left out: broken tools, since a run without tools records no calls."""


class Outcome(StrEnum):
    """What a report comes to."""

    ALARM = "alarm"
    """A cause is named."""
    UNEXPLAINED = "unexplained"
    """The run itself shows that something is wrong, and no cause that was tested is present."""
    HEALTHY = "healthy"
    """The reward certainly rises, or none of the common causes is present."""
    NOT_ENOUGH = "not enough to tell"
    """Nothing bad was seen, and too little was looked at to call it healthy."""


def outcome_of(report: Found) -> Outcome:
    """The first that holds."""
    if report.alarms:
        return Outcome.ALARM
    if troubles_of(report):
        return Outcome.UNEXPLAINED
    if _rises(report) or (common_tested(report) and not report.pointers):
        return Outcome.HEALTHY
    return Outcome.NOT_ENOUGH


def _rises(report: Found) -> bool:
    moved = report.event is not None and report.event.moves_reward
    return report.trend is not None and report.trend.rises and not moved


def common_tested(report: Found) -> bool:
    """Whether every common cause was tested; each can be, in a run and on a live trainer."""
    return not common_left(report)


def common_left(report: Found) -> list[str]:
    """The common causes that could not be tested, as the ends of "whether ..."."""
    tested = {one.hypothesis for one in report.findings if one.level is not Level.UNKNOWN}
    return [text for code, text in COMMON.items() if code not in tested]


def troubles_of(report: Found) -> list[Finding]:
    """What the run itself shows to be wrong, whatever its cause; surest first."""
    found = []
    if report.ended:
        found.append(
            _trouble("R5", "ended", Level.FAULT, report.ended, report.ended, fix=_READ_THE_END)
        )
    if report.broke_off:
        said = report.broke_off
        found.append(_trouble("R6", "broke-off", Level.FAULT, said, said, fix=_RECORD_AGAIN))
    elif report.damaged:
        found.append(_DAMAGED)
    if report.made_no_step:
        found.append(_NO_STEP)
    trend = report.trend
    if trend is not None and trend.falls:
        found.append(_trouble("R3", "reward-falls", Level.FAULT, "Your reward falls.", trend.text))
    elif trend is not None and trend.flat:
        headline = "Your reward never changes." if trend.constant else "Your reward is flat."
        found.append(_trouble("R4", "reward-flat", Level.SUSPECT, headline, trend.text))
    return found


def _trouble(
    code: str, name: str, level: Level, headline: str, text: str, *, fix: str = ""
) -> Finding:
    return Finding(hypothesis=code, name=name, level=level, headline=headline, text=text, fix=fix)


_READ_THE_END = (
    "Read what was printed just before that error, fix it, and resume from the last checkpoint."
)
_RECORD_AGAIN = (
    "What came after that step cannot have been tested: put the reason right, and record the run "
    "again where that matters."
)
_DAMAGED = _trouble(
    "R1",
    "recording-damaged",
    Level.FAULT,
    "Part of your recording could not be read.",
    "What was lost cannot have been tested.",
    fix="Read the remarks on what was lost; record the run again where that matters.",
)
_NO_STEP = _trouble(
    "R2",
    "no-step",
    Level.FAULT,
    "Your trainer never made an optimizer step.",
    "No step is recorded, so nothing can have been learnt.",
    fix="Read the end of the training's own output. Without an error there, the dataset may hold "
    "fewer prompts than one step takes.",
)


def next_of(report: Found) -> str:
    """The one thing to do: fix the cause, or what the run shows, or have more to look at."""
    fixes = [finding.fix for finding in (*report.causes[:1], *troubles_of(report)) if finding.fix]
    if fixes:
        return fixes[0]
    step = next_step(report.findings)
    return f"{step.do}; up to {step.causes} more causes can then be tested." if step else ""
