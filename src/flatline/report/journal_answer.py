"""What a journal opens with: the cause and its effect, what is excluded, what comes next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatline.journal.entry import CONTROL, OPEN, Entry, Status, standing
from flatline.journal.folder import RESULTS, Journal, Reading, load_json, part
from flatline.journal.roadmap import plan
from flatline.report.experiment_page import LEVELS

OUTCOMES = {"heldout_reward": "held-out reward", "reward": "training reward"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One hypothesis of a line."""

    entry: Entry
    """What its file says."""
    effect: dict[str, float | None] | None = None
    """Of the experiment that its status rests on, with its interval; None where none is kept."""
    outcome: str = ""
    """What the effect is an effect on."""
    seeds: int | None = None
    """Matched seeds behind it."""
    said: str = ""
    """More, where the effect is not what counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The box on top of the page."""

    headline: str
    level: str
    """A class of the style sheet."""
    lines: list[tuple[str, list[Item]]]
    """A label and the hypotheses that it holds for."""
    next: str
    """What to do."""


def answer_of(journal: Journal, reading: Reading) -> Answer:
    """What the verdicts of a journal come to."""
    control = [entry for entry in reading.entries if entry.code == CONTROL]
    others = [entry for entry in reading.entries if entry.code != CONTROL]
    causes = [_item(journal, one) for one in others if one.status is Status.VALIDATED]
    causes.sort(key=lambda one: -abs((one.effect or {}).get("value") or 0.0))
    lines = [
        ("Validated", causes),
        ("Control", [_control(one) for one in control if one.status not in OPEN]),
        ("Partial", [_item(journal, one) for one in others if one.status is Status.PARTIAL]),
        ("Ruled out", [Item(entry=one) for one in others if one.status is Status.INVALIDATED]),
        ("Open", [_open(one) for one in reading.entries if one.status in OPEN]),
    ]
    level = LEVELS["validated"] if causes else "unknown"
    headline = _headline([one.entry for one in causes], reading)
    kept = [(label, items) for label, items in lines if items]
    return Answer(headline=headline, level=level, lines=kept, next=_next(journal, reading))


def estimate_in(value: Any) -> dict[str, float | None] | None:
    """An estimate that someone may have edited; None where it is none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("value"), int | float):
        return None
    ends = {name: value.get(name) for name in ("value", "low", "high")}
    return {name: end if isinstance(end, int | float) else None for name, end in ends.items()}


def _headline(causes: Sequence[Entry], reading: Reading) -> str:
    if len(causes) == 1:
        return f"{causes[0].code} {causes[0].title} is a validated cause."
    if causes:
        return f"{len(causes)} causes are validated: {', '.join(one.code for one in causes)}."
    if not reading.entries:
        return "No hypothesis yet."
    if reading.broken or any(entry.status in OPEN for entry in reading.entries):
        return "No cause is validated yet."
    return "Every hypothesis was tested, and none is validated as the cause."


def _item(journal: Journal, entry: Entry) -> Item:
    """With the effect of the newest experiment that came to what the file says."""
    for name in reversed(entry.experiments):
        kept = load_json(journal.path / RESULTS / f"{name}.json") or {}
        if part(kept, "verdict", "verdict") != entry.status:
            continue
        outcome, seeds = part(kept, "plan", "outcome"), part(kept, "verdict", "seeds")
        return Item(
            entry=entry,
            effect=estimate_in(part(kept, "verdict", "effect")),
            outcome=OUTCOMES.get(str(outcome), "outcome"),
            seeds=seeds if isinstance(seeds, int) else None,
        )
    return Item(entry=entry, said="no experiment of it is kept here")


def _control(entry: Entry) -> Item:
    return Item(entry=entry, said=standing(entry.code, entry.status).lower())


def _open(entry: Entry) -> Item:
    waits = entry.status is Status.PENDING  # as most of them do: it need not be said of each
    return Item(entry=entry, said="" if waits else entry.status.value)


def _next(journal: Journal, reading: Reading) -> str:
    if reading.broken:
        return "Mend the files that cannot be read: until then nobody can say what comes next."
    queue = plan(journal)
    if queue.advice or not queue.steps:
        return queue.advice
    first = queue.steps[0]
    command = f"`{first.command}`" if first.command.startswith("flatline ") else first.command
    return f"{first.entry.code} {first.entry.title}: {command}. {first.reasons[0]}"
