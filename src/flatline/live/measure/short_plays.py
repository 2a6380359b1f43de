"""Plays that are cut short: on a GPU a play takes as long as its longest turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

from flatline.rollout.engine import Engine
from flatline.rollout.record import Author, Rollout

TURN = 96
"""Tokens of a turn in plays that are compared with others, token by token: as many as the lab
policy has, so that nothing of its plays is lost."""
MOVED_TURN = 32
"""The same for plays around a change of the weights, which only ask for the sampler's log-probs.
Moved weights often forget to end a turn."""
MOVED_TURNS = 2
"""Turns of such plays: one that answers the prompt and one that has seen a tool."""


@contextmanager
def turns_of(engine: Engine, tokens: int, turns: int | None = None) -> Iterator[None]:
    """The engine, with turns of at most so many tokens, and at most so many turns."""
    limits = engine.limits
    engine.limits = replace(
        limits,
        max_new_tokens=min(tokens, limits.max_new_tokens),
        max_turns=min(turns or limits.max_turns, limits.max_turns),
    )
    try:
        yield
    finally:
        engine.limits = limits


def longest_turn(rollout: Rollout) -> int:
    """Tokens of the longest turn that the model wrote."""
    runs = [(author, sum(1 for _ in run)) for author, run in groupby(rollout.authors)]
    return max((size for author, size in runs if author is Author.MODEL), default=0)


def written_tokens(rollout: Rollout) -> int:
    """Tokens that the model wrote, in all turns."""
    return sum(author is Author.MODEL for author in rollout.authors)
