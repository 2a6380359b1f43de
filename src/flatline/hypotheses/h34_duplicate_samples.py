"""The rollouts of a prompt are copies of each other, so a group is smaller than it looks.

## What goes wrong
A fixed seed per request, or replicas that share one, draw the same completion several times. Copies
earn the same and add nothing to compare: a group of 8 that holds 2 texts is a group of 2, at the
price of 8. A low temperature does the same more gently.

## Sign
How often two rollouts of a group are the same, against how often they should be. The sampler's own
log-probs say the latter: a completion of probability p has a copy among others with chance p. A
fault where the surplus is certainly above 0.1, and a suspicion where a temperature or a cut of the
distribution may make those log-probs another distribution's. Without log-probs the share of copies
is noted at most: on easy tasks most completions of a sharp policy are the same, with reason (70 %
in healthy toolmath runs of the lab, and the log-probs say 70 %).

## Probe
The same, on one batch.

## Experiment
A planted fault against none, or a temperature below 1 against 1; matched seeds, outcome is the
held-out reward.

## Fix
Leave the seed of requests unset, or give each one its own; seed replicas by rank. Sample at
temperature 1.

## Not to be confused with
H32 zero-variance-groups: completions differ and earn the same. H33 group-integrity: prompts appear
several times in a step, but their completions differ. H21 sampling-parameters: the sampler draws
from another distribution than the trainer assumes. A policy that has become certain repeats itself
too, as often as its log-probs say.

## References
ms-swift issue 3450 (3 of 6 completions equal, by rank); TRL seeds vLLM by rank.
Threshold: in 26 healthy lab runs the surplus is -0.03 to 0.03; 0 of 26 alarm (interval 0 to
13 %).
"""

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.arms import at_temperature_one
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import mean_of
from flatline.hypotheses.logprobs import some_steps
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.tokens import Tokens

SURPLUS = 0.1
"""Equal pairs beyond those that the log-probs allow, as a share of all pairs."""
STEPS = 8
"""Steps whose tokens are compared."""
MANY = 0.5
"""Copies that are noted where there are no log-probs to hold them against."""
SIDES = ("sampler", "trainer")
"""Whose log-probs say how likely a copy is: the sampler's own, else those of the policy that is
trained, which it should have drawn from."""
FEWEST = 8
"""Groups that must have been compared, unless fewer rule it out."""


class DuplicateSamples(Hypothesis):
    id = "H34"
    name = "duplicate-samples"
    headline = "Your samples of a prompt are copies of each other."
    meaning = "Copies cannot be compared: the group that is paid for is not the group there is."
    fix = "Give every request a different seed, or none; do not sample greedily."
    mechanism = "Rollouts of a prompt are copies of each other; in the other arm they are not."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Are there more copies than chance makes?"""
        tokens = trace.tokens(some_steps(trace, STEPS)) if len(trace.token_steps) else None
        sides = [] if tokens is None else [one for one in SIDES if _is_known(tokens, one)]
        if tokens is None or not sides:
            return self._from_texts(trace)
        chance = _chances(tokens, sides[0])
        texts = np.array([hash(ids.tobytes()) for ids in _each(tokens)])
        group = trace.groups().index[tokens.rollout_rows]
        same, expected, sizes = _pairs(texts, chance, group)
        surplus = mean_of((same - expected) / sizes)
        if surplus.n < FEWEST and not surplus.high < SURPLUS:
            return self.too_little(f"{FEWEST - surplus.n} more groups with log-probs are needed")
        text = (
            f"{same.sum() / sizes.sum():.0%} of the {sizes.sum():.0f} pairs inside {surplus.n} "
            f"groups are equal; the {sides[0]}'s log-probs allow "
            f"{expected.sum() / sizes.sum():.0%}."
        )
        certain = sides[0] == "sampler" and _draws_as_it_says(trace)
        level = Level.FAULT if certain else Level.SUSPECT
        return self.found(
            level if surplus.low > SURPLUS else Level.OK,
            text,
            measured=surplus,
            expected="0",
            severity=surplus.value / SURPLUS,
            evidence=_examples(trace, tokens, texts, group),
            proven=True,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """A low temperature against 1."""
        return at_temperature_one(config)

    def _from_texts(self, trace: Trace) -> Finding:
        copies = np.array(
            [1 - len({str(text) for text in one}) / len(one) for one in _texts(trace)]
        )
        share = mean_of(copies)
        return self.found(
            Level.NOTE if share.low > MANY else Level.OK,
            f"{share.value:.0%} of the completions repeat another of their group. Whether that is "
            "more than chance makes, only the sampler's log-probs could say.",
            measured=share,
        )


def _texts(trace: Trace) -> list[np.ndarray]:
    return trace.groups().each("completion")


def _is_known(tokens: Tokens, side: str) -> bool:
    """Whether one side's log-probs, and who wrote what, were recorded."""
    try:
        own = tokens.author == Author.MODEL
        return bool(np.isfinite(getattr(tokens, side)[own]).any())
    except NotRecorded:
        return False


def _chances(tokens: Tokens, side: str) -> np.ndarray:
    """The probability of each completion; a token without a log-prob counts as certain."""
    own = tokens.author == Author.MODEL
    found = np.where(own, np.nan_to_num(getattr(tokens, side)), 0.0)
    total = np.bincount(tokens.row, found, minlength=len(tokens.rollout_rows))
    return np.asarray(np.exp(np.minimum(total, 0.0)))


def _each(tokens: Tokens) -> list[np.ndarray]:
    """The ids of each completion."""
    lengths = np.bincount(tokens.row, minlength=len(tokens.rollout_rows))
    return np.split(tokens.ids, np.cumsum(lengths)[:-1])


def _pairs(
    texts: np.ndarray, chance: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per group: equal pairs, equal pairs that chance makes, and all pairs."""
    same, expected, sizes = [], [], []
    order = np.argsort(group, kind="stable")
    cuts = np.flatnonzero(np.diff(group[order])) + 1
    for rows in np.split(order, cuts):
        known = rows[np.isfinite(chance[rows])]
        n = len(known)
        if n < 2:
            continue
        counts = np.unique(texts[known], return_counts=True)[1]
        same.append(float((counts * (counts - 1)).sum()) / 2)
        expected.append(float(chance[known].sum()) * (n - 1) / 2)
        sizes.append(n * (n - 1) / 2)
    return np.array(same), np.array(expected), np.array(sizes)


def _draws_as_it_says(trace: Trace) -> bool:
    """Whether the log-probs are certainly those of the distribution that is drawn from."""
    told = trace.settings
    plain = told.get("temperature") == 1 and told.get("top_p") in (None, 1)
    return plain and not told.get("top_k") and not told.get("min_p")


def _examples(trace: Trace, tokens: Tokens, texts: np.ndarray, group: np.ndarray) -> list[Evidence]:
    """A few rollouts that repeat an earlier one of their group."""
    first: dict[tuple[int, int], int] = {}
    found: list[Evidence] = []
    number = trace.rollouts["rollout"]
    for at, key in enumerate(zip(group.tolist(), texts.tolist(), strict=True)):
        other = first.setdefault(key, at)
        if other != at and len(found) < 3:
            row, before = tokens.rollout_rows[at], tokens.rollout_rows[other]
            found.append(
                Evidence.of(
                    trace,
                    row,
                    f"rollout {int(number[row])} is token for token {int(number[before])}",
                )
            )
    return found
