"""What a hypothesis is, and what it can find.

A hypothesis is one file. Its module docstring is its manual page. It may look at a trace (`sign`,
free), re-score what the trace holds (`replay`, free), look at a live trainer (`probe`, seconds) and
say what to compare (`experiment`, trainings); a part that cannot exist is absent, not faked.
What is not recorded raises `NotRecorded`, which the diagnosis turns into a finding of level
`unknown`: a hypothesis never has to ask whether a column is there.

    sign(trace)          -> Finding        is it visible in what was recorded?
    replay(trace)        -> Replay         would the trainer have learned from other advantages?
    probe(subject)       -> Finding        does the live trainer break the invariant?
    suspected(config)    -> Setting | None which setting of this setup to change

`replay` raises `NotRecorded` like a sign. `experiment(config)` is the same for all: a planted fault
is the first thing to take away, for it is the whole of the suspected cause; else the suspected
setting is changed. It returns None where the setup has nothing of the hypothesis to take away. What
an arm compares, the manual says under `Experiment`.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

from flatline.config import RunConfig
from flatline.errors import needing
from flatline.live.where.place import Where
from flatline.stats import Estimate
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject


class Level(StrEnum):
    """How sure a finding is; also the order in which findings are shown."""

    FAULT = "fault"
    """An invariant is broken: this is a defect, whatever else is wrong."""
    SUSPECT = "suspect"
    """Beyond what healthy runs show; the threshold and its false-alarm rate are in the manual."""
    NOTE = "note"
    """Worth knowing; not an explanation of a flat reward by itself."""
    OK = "ok"
    """Looked at and ruled out, or cannot apply to this run; the text says which. A look that could
    not be taken, because a column is absent, a guard abstains or too little was recorded, is
    `UNKNOWN`: `Finding.looked_at` counts what was seen."""
    UNKNOWN = "unknown"
    """Cannot tell from this; the text says what would be needed."""


ALARMS = (Level.FAULT, Level.SUSPECT)


_PLACED = re.compile(r"step (?P<step>\d+), rollout (?P<rollout>\d+): (?P<text>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One example that shows a finding."""

    text: str
    """What is seen, readable by itself; decoded tokens are quoted."""
    step: int | None = None
    """Optimizer step of the rollout."""
    rollout: int | None = None
    """Its number in that step: `flatline show RUN --step N --rollout K`."""

    @classmethod
    def placed(cls, text: str) -> Self:
        """What begins with its place, as `step 1, rollout 8: ...`; as it is where it does not."""
        found = _PLACED.fullmatch(text)
        if found is None:
            return cls(text=text)
        return cls(text=found["text"], step=int(found["step"]), rollout=int(found["rollout"]))

    @classmethod
    def of(cls, trace: Trace, row: int, text: str) -> Self:
        """What is seen in a rollout, which is known by its row in `trace.rollouts`."""
        step, rollout = (int(trace.rollouts[name][row]) for name in ("step", "rollout"))
        return cls(text=text, step=step, rollout=rollout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one hypothesis says about one run."""

    hypothesis: str
    """Its code, such as `H09`."""
    name: str
    """Its kebab-case name."""
    level: Level
    """How sure."""
    headline: str = ""
    """The cause in plain words, of an alarm or a note that points at one."""
    text: str
    """What was seen, with numbers, in one or two sentences."""
    measured: Estimate | float | None = None
    """The value behind the text; with its interval where it is an estimate."""
    expected: str = ""
    """What a healthy run shows, in a few words."""
    evidence: tuple[Evidence, ...] = ()
    """Examples, the plainest first."""
    where: tuple[Where, ...] = ()
    """Lines of the running code that may have made it so, the likeliest first."""
    meaning: str = ""
    """Why it matters."""
    fix: str = ""
    """What to do, as something to type or change."""
    severity: float = 0.0
    """Orders findings of one level: how many times beyond the threshold."""
    explains: tuple[str, ...] = field(default=())
    """Codes of hypotheses that fire only because of this one."""
    proven: bool = False
    """Seen directly and not by its effects: no other alarm explains it away."""
    points_at_cause: bool = False
    """A note that may name the cause, if too rare or too little for an alarm: nothing is called
    healthy beside it unless the reward rises."""
    needs: str = ""
    """What would let it be tested, as something to do; of level `unknown` alone."""
    looked_at: int = 0
    """How many things were looked at (tokens, rollouts, groups, steps, tensors); an all-clear has
    one or more, or `excluded_by`."""
    excluded_by: str = ""
    """The setting that excludes it, or the part of the setup that is not there to be wrong."""

    @property
    def bearing(self) -> str:
        """Whether it supports the hypothesis, contradicts it, or says nothing."""
        if self.level in ALARMS:
            return "supports"
        return "contradicts" if self.level is Level.OK else "says nothing"

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `--json` prints."""
        measured = self.measured
        return {
            "hypothesis": self.hypothesis,
            "name": self.name,
            "level": self.level.value,
            "bearing": self.bearing,
            "headline": self.headline,
            "text": self.text,
            "measured": measured.to_json() if isinstance(measured, Estimate) else _known(measured),
            "expected": self.expected,
            "evidence": [
                {"text": e.text, "step": e.step, "rollout": e.rollout} for e in self.evidence
            ],
            "where": [one.to_json() for one in self.where],
            "meaning": self.meaning,
            "fix": self.fix,
            "explains": list(self.explains),
            "points_at_cause": self.points_at_cause,
            "needs": self.needs,
        }


class Setting(NamedTuple):
    """One field of a setup, as it is without the suspected cause."""

    factor: str
    """The field of `RunConfig`."""
    value: Any
    """What it is without the suspected cause."""
    control: str
    """The setup as it is, readable: `KL weight 0.04`."""
    treated: str
    """The setup without the suspected cause, readable: `KL weight 0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What an experiment compares: the setup as it is, and the suspected cause taken away."""

    factor: str
    """The field of `RunConfig` that differs."""
    control: str
    """The setup as it is, readable: `KL weight 0.04`."""
    treated: str
    """The setup without the suspected cause, readable: `KL weight 0`."""
    change: Mapping[str, Any]
    """The treated arm is `replace(config, **change)`; its one key is the factor."""
    mechanism: str
    """What must flip between the arms if the hypothesis is right, a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What re-scoring the stored rollouts says, without any training."""

    decided: bool
    """The update would have been nearly the same: this cannot be what makes the reward flat."""
    text: str
    """What was compared and what came of it, in one or two sentences."""
    agreement: Estimate
    """Cosine of the advantages trained on with those of the other rule; `n` counts groups, or the
    prompts behind them."""


class Hypothesis:
    """One way a GRPO run can fail to learn. Subclasses add the parts that exist."""

    id: str
    """Stable code such as `H09`; never reused."""
    name: str
    """Kebab-case name of the fault, not of the remedy."""
    headline: str = ""
    """The first sentence of an answer that names this cause: plain words, no code, about 12."""
    explains: tuple[str, ...] = ()
    """Codes of hypotheses whose signs this one produces."""
    fix: str = ""
    """What to do about it; settings by the names of `flatline.hypotheses.wording`, in braces."""
    meaning: str = ""
    """Why it matters, in a sentence."""
    mechanism: str = ""
    """What must flip between the arms of its experiment, a sentence."""
    on_one_batch: bool = False
    """Whether its sign needs no history, so that a checkup can read it from one batch."""

    @classmethod
    def manual(cls) -> str:
        """The manual page."""
        return (sys.modules[cls.__module__].__doc__ or "").strip()

    def found(
        self,
        level: Level,
        text: str,
        *,
        measured: Estimate | float | None = None,
        expected: str = "",
        evidence: Sequence[Evidence] = (),
        severity: float = 1.0,
        fix: str | None = None,
        headline: str | None = None,
        proven: bool = False,
        points_at_cause: bool = False,
        needs: str = "",
        looked_at: int | None = None,
        excluded_by: str = "",
    ) -> Finding:
        """A finding of this hypothesis. `headline` and `fix` stand in for its own where it saw
        more exactly what is wrong.

        An all-clear says how many things were `looked_at`, by itself or by the `n` of what was
        `measured`, or what it is `excluded_by`. One that has looked at nothing is unknown.
        """
        if looked_at is None:
            looked_at = measured.n if isinstance(measured, Estimate) else 0
        value = measured.value if isinstance(measured, Estimate) else measured
        seen = looked_at > 0 and not (value is not None and math.isnan(value))
        if level is Level.OK and not seen and not excluded_by:
            return self.too_little("there was nothing to look at")
        alarm = level in ALARMS
        pointer = points_at_cause and level is Level.NOTE
        return Finding(
            hypothesis=self.id,
            name=self.name,
            level=level,
            headline=(headline or self.headline) if alarm or pointer else "",
            text=text,
            measured=measured,
            expected=expected,
            evidence=tuple(evidence),
            meaning=self.meaning if alarm else "",
            fix=(self.fix if fix is None else fix) if alarm else "",
            severity=severity,
            explains=self.explains if alarm else (),
            proven=proven and alarm,
            points_at_cause=pointer,
            needs=needs,
            looked_at=looked_at,
            excluded_by=excluded_by if level is Level.OK else "",
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """The setting that may be the cause; None where no setting is, or this setup has none."""
        return None

    def experiment(self, config: RunConfig) -> Arms | None:
        """The arms to compare; None where this setup has nothing of it to take away."""
        setting = self._planted(config) or self.suspected(config)
        if setting is None or _is_set_back(config, setting):
            return None
        return Arms(
            factor=setting.factor,
            control=setting.control,
            treated=setting.treated,
            change={setting.factor: setting.value},
            mechanism=self.mechanism,
        )

    def _planted(self, config: RunConfig) -> Setting | None:
        """The planted faults of this hypothesis, all of them; None where it has none."""
        if config.fault is None:
            return None
        with needing("A planted fault"):
            from flatline.faults import belonging, without  # loads torch, as no trace needs

        theirs = " and ".join(belonging(config.fault, self.id))
        if not theirs:
            return None
        left = without(config.fault, self.id)
        return Setting("fault", left, control=f"with {theirs}", treated=f"without {theirs}")

    def not_applicable(self, why: str, *, excluded_by: str = "", looked_at: int = 0) -> Finding:
        """It cannot be the cause here, whatever the numbers say: a setting excludes it, or so many
        things were looked at and none of them can have it."""
        text = f"Does not apply: {why}"
        return self.found(Level.OK, text, looked_at=looked_at, excluded_by=excluded_by)

    def too_little(self, what: str) -> Finding:
        """Not enough data; `what` says how much more is needed."""
        return self.found(Level.UNKNOWN, f"Not enough data: {what}")


def _is_set_back(config: RunConfig, setting: Setting) -> bool:
    """Whether a planted fault of another hypothesis sets the field back: the arms would be one."""
    if config.fault is None:
        return False
    with needing("A planted fault"):
        from flatline.faults import changed, find
    treated = replace(config, **{setting.factor: setting.value})
    return bool(getattr(changed(treated, find(treated.fault)), setting.factor) != setting.value)


def _known(value: float | None) -> float | None:
    """JSON has neither infinity nor NaN."""
    return value if value is not None and math.isfinite(value) else None


@runtime_checkable
class HasSign(Protocol):
    """Looks at what was recorded. Free: no model is run."""

    def sign(self, trace: Trace) -> Finding:
        """Is it visible in the trace?"""


@runtime_checkable
class HasProbe(Protocol):
    """Looks at a live trainer with one or two batches, and leaves it as it was."""

    def probe(self, subject: "Subject") -> Finding:
        """Does the trainer break the invariant?"""


@runtime_checkable
class HasReplay(Protocol):
    """Re-scores the stored rollouts under the rule without the suspected cause. Free."""

    def replay(self, trace: Trace) -> Replay:
        """Would the advantages have been others?"""
