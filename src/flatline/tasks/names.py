"""Invented names, two syllables each, split so that no name stands in two splits."""

import hashlib
import random
from collections.abc import Iterator
from functools import cache

HEADS = tuple(c + v + e for c in "BCDFGHKLMNPRSTVZ" for v in "aeiou" for e in ("l", "rn"))
"""First syllables; no two names of one problem share one, so that a name is known by its start."""
TAILS = tuple(c + v + e for c in "bdgkmt" for v in "aeiou" for e in ("ra", "x"))
"""Second syllables."""

SPLITS = ("train", "validation", "test")
_SHARES = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


def split_of(name: str) -> str:
    """The split a name belongs to: a tenth each for validation and test."""
    digit = hashlib.sha256(name.encode()).digest()[0] % 10
    return next(split for split in SPLITS if digit in _SHARES[split])


@cache
def _tails_of(split: str) -> dict[str, tuple[str, ...]]:
    """Per first syllable, the second syllables that make a name of the split."""
    found = {h: tuple(t for t in TAILS if split_of(h + t) == split) for h in HEADS}
    return {head: tails for head, tails in found.items() if tails}


def fresh_names(rng: random.Random, split: str) -> Iterator[str]:
    """Names of a split in random order; no two begin alike."""
    tails = _tails_of(split)
    for head in rng.sample(sorted(tails), len(tails)):
        yield head + rng.choice(tails[head])
