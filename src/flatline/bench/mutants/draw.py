"""Which mutants are tried: as many of every operator, half of them kept for the end.

The half is decided by the text of the change alone, before anything has run: `development` may be
looked at and fixed for, `test` is run once, on what is then there, and published as it falls.
What was never tried when a test has been looked at is divided anew, by another bit of its text.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain, zip_longest
from pathlib import Path
from typing import TypeVar

from flatline.bench.mutants.sites import Mutation

T = TypeVar("T")


class Split(StrEnum):
    DEVELOPMENT = "development"
    TEST = "test"


def split_of(mutation: Mutation, *, anew: bool = False) -> Split:
    """The same in every release in which the line reads the same."""
    module = Path(mutation.module).name
    told = "\0".join((module, mutation.function, mutation.before, mutation.after))
    drawn_lot = hashlib.blake2b(told.encode(), digest_size=1).digest()[0] >> anew
    return Split.DEVELOPMENT if drawn_lot % 2 == 0 else Split.TEST


def drawn(
    mutations: Iterable[Mutation], split: Split, count: int, seed: int, *, anew: bool = False
) -> list[Mutation]:
    """`count` of one half in random order, operators in turn: a common one crowds out no other."""
    by_operator: dict[str, list[Mutation]] = defaultdict(list)
    for one in mutations:
        if split_of(one, anew=anew) is split:
            by_operator[one.operator].append(one)
    return in_turn(_shuffled(some, seed) for _, some in sorted(by_operator.items()))[:count]


def _shuffled(mutations: Sequence[Mutation], seed: int) -> list[Mutation]:
    return random.Random(seed).sample(mutations, len(mutations))


def in_turn(lists: Iterable[Sequence[T]]) -> list[T]:
    """One of each, again and again: broken off, none has been left out."""
    turns = chain.from_iterable(zip_longest(*lists))
    return [one for one in turns if one is not None]
