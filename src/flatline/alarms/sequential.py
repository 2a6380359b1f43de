"""Does a series fall? A test that may be looked at after every value, for as long as one likes.

Where nothing falls, the rank of a new value among those before it is uniform, whatever the noise
is like (and rather high where the series rises). A bet on low ranks then wins nothing on average,
at any time: that it ever multiplies its stake by 1 / error is no likelier than the error (Ville's
inequality). So the error holds for all looks together, with no correction and no model of the
noise. Vovk, Nouretdinov and Gammerman, "Testing exchangeability on-line" (ICML 2003), have the
theory.

Every bet says from which value on the series is lower: lower than the lowest, or than the middle,
of what came before. Nobody knows these beforehand, so there is a bet for each, and all of them
share one stake.
"""

import bisect

import numpy as np

AMONG = np.array([0.02, 0.1, 0.25, 0.5, 0.5])
"""What a bet says of later values: that they lie in so low a share of the earlier ones."""
HIT = np.array([0.9, 0.9, 0.9, 0.9, 0.65])
"""How sure it is of that; the last finds what falls little, or slowly."""
HIGHEST = 0.8
"""Share of the ranks up to which a bet is made: above it nothing is left to say."""
FEWEST = 4
"""Values before the first bet."""
RECENT = (16, 64)
"""Values before it that a bet compares with; a third one compares with all of them."""
LATER = 512
"""Values after which a bet is over; it has won by then, or never will. Those that compare with all
and began first, second, fourth, eighth and so on never are: they find what falls slowly."""
MOST = 600.0
"""Logarithm of odds that is surely enough."""


class Falling:
    """The bets on one series."""

    def __init__(self, *, seed: int = 0) -> None:
        self.length = 0
        """Values so far."""
        self._draw = np.random.default_rng(seed)
        """Ranks of equal values are drawn among theirs: else ties would make them not uniform."""
        self._all: list[float] = []
        """Lowest first."""
        self._latest = np.zeros(0)
        self._begun = 0
        """How often bets began, with those that are over."""
        self._first = np.zeros(0, dtype=np.int64)
        """The first value that each bet is about."""
        self._base = np.zeros(0, dtype=np.int64)
        """The first value that each bet compares with."""
        self._endless = np.zeros(0, dtype=bool)
        self._log_stake = np.zeros(0)
        self._log_won = np.zeros((0, len(AMONG)))

    def add(self, value: float, *, begins: bool = True) -> None:
        """The next value; where it `begins` something, such as a step, bets may begin with it."""
        if begins and self.length >= FEWEST:
            self._begin()
        bisect.insort(self._all, value)
        self._latest = np.append(self._latest, value)[-(max(RECENT) + LATER) :]
        self.length += 1
        count = self.length - self._base
        rank = self._ranks(value, count)
        # Among later values, which are as low, its rank is anything.
        later = (self.length - self._first) / count
        bound = later[:, None] + (1 - later)[:, None] * AMONG
        won = np.where(rank[:, None] <= bound, HIT / bound, (1 - HIT) / (1 - bound))
        self._log_won += np.where(bound < HIGHEST, np.log(won), 0.0)

    @property
    def odds(self) -> float:
        """What the stake has become: 100 is what an error of 1 % allows."""
        return float(np.exp(np.minimum(self._log_odds(), MOST)).sum())

    @property
    def since(self) -> int:
        """The first of the lower values, as the best bet has it."""
        return int(self._first[np.argmax(self._log_odds())])

    def _log_odds(self) -> np.ndarray:
        if not len(self._log_won):
            return np.full(1, -np.inf)
        most = self._log_won.max(axis=1)
        mean = np.exp(self._log_won - most[:, None]).mean(axis=1)
        return np.asarray(self._log_stake + most + np.log(mean))

    def _begin(self) -> None:
        """A few bets; the later they are the less they get: all stakes together stay below 1."""
        self._begun += 1
        bases = sorted({0, *(max(0, self.length - recent) for recent in RECENT)})
        stake = 1 / (self._begun * (self._begun + 1)) / len(bases)
        goes_on = (self.length - self._first < LATER) | self._endless
        endless = [base == 0 and self._begun.bit_count() == 1 for base in bases]
        self._first = np.append(self._first[goes_on], [self.length] * len(bases))
        self._base = np.append(self._base[goes_on], bases)
        self._endless = np.append(self._endless[goes_on], endless)
        self._log_stake = np.append(self._log_stake[goes_on], [np.log(stake)] * len(bases))
        self._log_won = np.vstack([self._log_won[goes_on], np.zeros((len(bases), len(AMONG)))])

    def _ranks(self, value: float, count: np.ndarray) -> np.ndarray:
        """For every bet, where the value lies among those it compares with, in (0, 1]."""
        recent = np.minimum(count, len(self._latest)) - 1
        lower = np.cumsum((self._latest < value)[::-1])[recent]
        equal = np.cumsum((self._latest == value)[::-1])[recent]
        below = bisect.bisect_left(self._all, value)
        alike = bisect.bisect_right(self._all, value) - below
        all_of_it = self._base == 0
        lower, equal = np.where(all_of_it, below, lower), np.where(all_of_it, alike, equal)
        return np.asarray((lower + (1 - self._draw.random()) * equal) / count)
