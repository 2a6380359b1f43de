"""Two remedies that only together take a cause away."""

from collections.abc import Callable
from typing import Any

from flatline.remedies.base import Remedy, Tally, Undo

Apply = Callable[[Any, Tally], list[Undo]]


def together(*parts: Apply) -> Apply:
    """All of them, in this order."""

    def apply(trainer: Any, tally: Tally) -> list[Undo]:
        return [undo for part in parts for undo in part(trainer, tally)]

    return apply


def both(first: Remedy, second: Remedy) -> Remedy:
    """A remedy that is two."""
    return Remedy(
        name=f"{first.name} and {second.name}",
        what=f"{first.what}, and {second.what}",
        apply=together(first.apply, second.apply),
        beyond_gradient=first.beyond_gradient or second.beyond_gradient,
    )
