"""Remedies: the suspected cause taken away in a running trainer, reversibly.

    with remedied(trainer, ["H09"]):
        trainer.train()

`table.py` says for every hypothesis which remedy it has, or why it has none and what a person must
change. docs/an-investigation.md is made from it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flatline.errors import ConfigError
from flatline.hypotheses import find
from flatline.remedies.base import Applied, Remedy, applied
from flatline.remedies.table import REMEDIES, WITHOUT

__all__ = ["REMEDIES", "WITHOUT", "Applied", "Remedy", "apply", "remedied", "remedy_of"]


def remedy_of(code: str) -> Remedy:
    """The remedy of a hypothesis; what a person must change is said where it has none."""
    hypothesis = find(code)
    if hypothesis.id in REMEDIES:
        return REMEDIES[hypothesis.id]
    raise ConfigError(
        f"{hypothesis.id} {hypothesis.name} has no remedy that can be put into a running trainer.\n"
        f"{WITHOUT[hypothesis.id]}\nThose that have one: {', '.join(REMEDIES)}."
    )


def apply(trainer: Any, codes: Sequence[str]) -> Applied:
    """Take the suspected causes away in a trainer that is built and has not begun."""
    return applied(trainer, {find(code).id: remedy_of(code) for code in codes})


@contextmanager
def remedied(trainer: Any, codes: Sequence[str]) -> Iterator[Applied]:
    """The same for a while."""
    made = apply(trainer, codes)
    try:
        yield made
    finally:
        made.undo()
