"""What to test next, and why: priority, cost, and what the verdicts so far imply for the rest.

A hypothesis has the weight of its priority (high 0, medium 1, low 2), moved by what is known:

    the positive control is open        to the front until a cause is found: nothing else can be
                                        trusted before
    its runs are under way              right after that: they only have to be finished
    explained by a validated one        down by 3: its signs would be there anyway
    related to a validated one          down by 1
    would explain a partial one         up by 2: something real was seen that is not the cause
    related to a partial one            up by 0.5
    related to a failed control         up by 1

Among equals the cheaper one comes first, then the test order.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatline.journal.entry import CONTROL, LEVELS, OPEN, Entry, Status
from flatline.journal.folder import FIXES, HYPOTHESES, Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One open hypothesis and its place in the queue."""

    entry: Entry
    weight: float
    """The smaller, the sooner."""
    reasons: tuple[str, ...]
    """Why it stands there, the strongest first."""
    command: str
    """What to type."""

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.entry.code,
            "title": self.entry.title,
            "priority": self.entry.priority,
            "status": self.entry.status.value,
            "cost_minutes": self.entry.cost_minutes,
            "reasons": list(self.reasons),
            "command": self.command,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Roadmap:
    """Everything that is open, in the order in which to test it."""

    steps: tuple[Step, ...]
    advice: str
    """What comes before any further test; empty where nothing does."""

    def to_json(self) -> dict[str, Any]:
        """The stable shape of `flatline journal next --json`."""
        queue = [step.to_json() for step in self.steps]
        return {"next": queue[0] if queue else None, "advice": self.advice, "queue": queue}


def plan(journal: Journal) -> Roadmap:
    """The queue of a journal."""
    reading = journal.read()
    reading.insist()
    open_ones = [entry for entry in reading.entries if entry.status in OPEN]
    steps = [_step(entry, reading.entries, journal.path) for entry in open_ones]
    steps.sort(key=_place)
    return Roadmap(steps=tuple(steps), advice=_advice(journal, reading.entries, bool(steps)))


def _place(step: Step) -> tuple[float, float, int, str]:
    cost = step.entry.cost_minutes
    return step.weight, math.inf if cost is None else cost, step.entry.order, step.entry.code


def _step(entry: Entry, others: Sequence[Entry], journal: Path) -> Step:
    found = any(other.status is Status.VALIDATED for other in others)
    moves = [*_own(entry, found), *(move for other in others for move in _implied(entry, other))]
    moves.sort(key=lambda move: -abs(move[0]))
    reasons = [reason for _, reason in moves] + [f"Priority {entry.priority}, {_cost(entry)}."]
    return Step(
        entry=entry,
        weight=LEVELS.index(entry.priority) + sum(shift for shift, _ in moves),
        reasons=tuple(reasons),
        command=_command(entry, journal),
    )


def _own(entry: Entry, found: bool) -> list[tuple[float, str]]:
    if entry.code == CONTROL and not found:
        return [(-20, "Until the positive control is known, no other result can be trusted.")]
    if entry.status is Status.TESTING:
        return [(-10, "Its runs are under way; the same command goes on where they stopped.")]
    if entry.status is Status.INCONCLUSIVE:
        return [(0, f"Inconclusive so far. {entry.note}".strip())]
    return []


def _implied(entry: Entry, other: Entry) -> list[tuple[float, str]]:
    """What the verdict on one hypothesis means for another, still open one."""
    if other.code == entry.code:
        return []
    related = other.code in entry.related or entry.code in other.related
    if other.status is Status.VALIDATED and other.code == CONTROL:
        text = f"The positive control failed ({CONTROL}), and this is a part of what it needs."
        return [(-1, text)] if related else []
    if other.status is Status.VALIDATED and entry.code in other.explains:
        return [(3, f"{other.code} is validated and would produce its signs: fix that first.")]
    if other.status is Status.VALIDATED and related:
        return [(1, f"{other.code} is validated; what is left of this shows once it is fixed.")]
    if other.status is Status.PARTIAL and other.code in entry.explains:
        return [(-2, f"{other.code} is partial, real but not the cause; this would explain it.")]
    if other.status is Status.PARTIAL and related:
        return [(-0.5, f"{other.code} is partial, and the two are related.")]
    return []


def _cost(entry: Entry) -> str:
    if entry.cost_minutes is None:
        return "cost not known (`cost_minutes` in its file)"
    return f"up to {entry.cost_minutes:g} minutes"


def _command(entry: Entry, journal: Path) -> str:
    if entry.code.startswith("H"):
        return f"flatline investigate {entry.code} --journal {shlex.quote(str(journal))}"
    # flatline has neither a sign nor a probe of what it does not know.
    return f"test it by hand, then set `status` in {HYPOTHESES}/{entry.file.name}"


def _advice(journal: Journal, entries: Sequence[Entry], more: bool) -> str:
    folder = shlex.quote(str(journal.path))
    causes = [entry for entry in entries if entry.status is Status.VALIDATED]
    mended = [entry for entry in causes if entry.code != CONTROL]
    if mended:
        codes = ", ".join(entry.code for entry in mended)
        return (
            f"{codes} {'is' if len(mended) == 1 else 'are'} validated: apply what "
            f"{FIXES}/ says, then type `flatline journal resolve {folder}`."
        )
    if not more:
        return (
            "Every hypothesis was tested and none is the cause. Type `flatline explain` for others "
            f"and `flatline journal new H21 {folder}` to add one."
        )
    return ""
