"""What goes into a verdict and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flatline.stats import Estimate


class Ruling(StrEnum):
    """What was found out about a hypothesis."""

    VALIDATED = "validated"
    """The mechanism goes with the treatment, and the outcome moves by enough to matter."""
    PARTIAL = "partial"
    """The mechanism is real, and taking it away does not move the outcome: present, not causal."""
    INVALIDATED = "invalidated"
    """The mechanism is absent, or an effect that matters is excluded."""
    INCONCLUSIVE = "inconclusive"
    """Neither; the verdict says what would decide."""


class Confidence(StrEnum):
    """How much stands behind a ruling; docs/verdicts.md has the rules."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Presence(StrEnum):
    """Whether the runs of an arm show a mechanism."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Whether the arms showed what the hypothesis says goes wrong."""

    control: Presence
    """In the setup as it is."""
    treated: Presence | None
    """Where the suspected cause was taken away; None if no such run was made."""
    direct: bool
    """Seen itself, by a probe or a broken invariant, and not by its effects."""
    text: str
    """What was seen, in a sentence."""

    @property
    def flips(self) -> bool:
        """Whether it was there and the treatment took it away."""
        return self.control is Presence.PRESENT and self.treated is Presence.ABSENT

    def to_json(self) -> dict[str, Any]:
        return {
            "control": self.control.value,
            "treated": None if self.treated is None else self.treated.value,
            "direct": self.direct,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeControl:
    """An arm that cannot learn: what it gains is what the outcome gains by itself."""

    name: str
    """Such as `learning-rate-0`."""
    gain: Estimate
    """Outcome after training minus before."""
    clean: bool
    """It did not "improve"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one experiment says about one hypothesis."""

    hypothesis: str
    """Its code."""
    ruling: Ruling
    """The answer."""
    confidence: Confidence
    """How much stands behind it."""
    effect: Estimate
    """Treated minus control; the interval holds at every look. Unknown without runs."""
    smallest_effect: float
    """What the effect was held against."""
    alpha: float
    """Error rate of the family that this effect belongs to."""
    reason: str
    """Why, in a sentence."""
    would_change: str
    """What would lead to another ruling, in a sentence."""
    settled: bool
    """No further seed of this plan would change the ruling: stop."""
    mechanism: Mechanism
    """What the arms showed of it."""

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `--json` prints and `result.json` keeps."""
        return {
            "hypothesis": self.hypothesis,
            "verdict": self.ruling.value,
            "confidence": self.confidence.value,
            "effect": self.effect.to_json(),
            "smallest_effect": self.smallest_effect,
            "reason": self.reason,
            "would_change": self.would_change,
            "seeds": self.effect.n,
            "alpha": self.alpha,
            "mechanism": self.mechanism.to_json(),
        }
