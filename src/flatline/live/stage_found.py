"""What was found at one stage: plain words and numbers, no torch."""

from dataclasses import dataclass

NOT_REACHED = "Not reached in the time that was given."


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFound:
    """One stage of the trainer's step beside the specified one."""

    stage: str
    """One of `flatline.spec.STAGES`."""
    departs: bool | None
    """Whether it is another; None where it could not be determined."""
    text: str
    """What was expected and what was found, in a sentence or two."""
    measured: float | None = None
    """How far apart, in the unit of the text."""
    limit: float | None = None
    """How far the arithmetic may take them apart."""
    examples: tuple[str, ...] = ()
    """Something a person can check by hand."""
    by_chance: float = 0.0
    """How likely it would be seen in a right step; 0 where arithmetic rules that out."""
    direct: bool = False
    """Whether the cause itself was seen, so that nothing in the catalogue accounts for it."""
    explains: tuple[str, ...] = ()
    """Hypotheses of the catalogue that would see the same from further off."""
    expected: str = "the specified step"
    """What would be healthy, in a few words."""
    fix: str | None = None
    """What to do, where that is known better than of the stage as a whole."""
    headline: str | None = None
    """What is wrong, likewise."""
    given: bool = False
    """Whether it lies in what the trainer was given, so that no line of the trainer made it."""
    row: int | None = None
    """A row that shows it, where the code that makes rows can be followed by its number."""
    added: bool = False
    """Whether all that is specified is there, and something beside it: wrong in a library, and
    maybe a wish in a method of the user's own."""


def same(
    stage: str, text: str, measured: float | None = None, limit: float | None = None
) -> StageFound:
    """The stage is the specified one."""
    return StageFound(stage=stage, departs=False, text=text, measured=measured, limit=limit)


def unknown(stage: str, why: str) -> StageFound:
    """It could not be determined."""
    return StageFound(stage=stage, departs=None, text=why)


def departs(
    stage: str,
    text: str,
    *examples: str,
    measured: float | None = None,
    limit: float | None = None,
    fix: str | None = None,
) -> StageFound:
    """The stage is another."""
    return StageFound(
        stage=stage,
        departs=True,
        text=text,
        measured=measured,
        limit=limit,
        examples=examples,
        fix=fix,
    )
