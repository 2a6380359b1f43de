"""One alarm, as it is reported everywhere."""

from dataclasses import asdict, dataclass
from typing import Any

TREND = "trend"
"""Level of what certainly turned; the others are those of findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """What is wrong, reported once."""

    step: int
    """The latest step when it was seen."""
    level: str
    """`fault`: an invariant is broken; `suspect`: beyond what healthy runs show, for a while
    already; `trend`: a curve certainly turned."""
    code: str
    """Of the hypothesis, such as `H09`; empty for a trend."""
    name: str
    """Of the hypothesis or of the trend."""
    text: str
    """What was seen, with numbers."""
    fix: str = ""
    """What to do."""
    headline: str = ""
    """The cause in plain words; empty for a trend."""

    @property
    def title(self) -> str:
        """In a few words, the cause first."""
        about = f"{self.code} {self.name}".strip()
        if self.headline:
            return f"{self.headline} ({about}, {self.level} at step {self.step})"
        return f"{about} ({self.level}) at step {self.step}"

    def __str__(self) -> str:
        fix = f" {self.fix}" if self.fix else ""
        mark = "" if self.headline else ":"
        return f"{self.title}{mark} {self.text}{fix}"

    def to_json(self) -> dict[str, Any]:
        """The stable shape."""
        return asdict(self)
