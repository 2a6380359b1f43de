"""The rollouts of a prompt are copies of each other, so a group is smaller than it looks.

## What goes wrong
A fixed seed per request, or replicas that share one, draw the same completion several times. Copies
earn the same and add nothing to compare: a group of 8 that holds 2 texts is a group of 2, at the
price of 8. A low temperature does the same more gently.

## Sign
How often two rollouts of a group are the same, against how often they should be. The sampler's own
log-probs say the latter: a completion of probability p has a copy among others with chance p. A
fault where the surplus is certainly above 0.1, and a suspicion where a temperature or a cut of the
distribution may make those log-probs another distribution's. Where hardly any two are the same,
nothing needs to allow it. Without log-probs of the temperature that is drawn at, the share of
copies is noted at most: on easy tasks most completions of a sharp policy are the same, with reason
(70 % in healthy toolmath runs of the lab, and the log-probs say 70 %). A watched loop's are taken
at temperature 1; where its loss divides by another, those of the loss count.

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
from flatline.hypotheses.drawn_at import LIKELIER, drawn_at, is_watched, loss_temperature
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
WHOSE = {"scored": "trainer"}
"""Columns that are not named by whose log-probs they hold."""
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
        sides = [] if tokens is None else [x for x in _sides(trace) if _is_known(tokens, x)]
        if tokens is None or not sides:
            return self._told_by_none(_completions(trace, tokens))
        chance = _chances(tokens, sides[0])
        texts = np.array([hash(ids.tobytes()) for ids in _each(tokens)])
        group = trace.groups().index[tokens.rollout_rows]
        same, expected, sizes = _pairs(texts, chance, group)
        surplus = mean_of((same - expected) / sizes)
        if surplus.n < FEWEST and not surplus.high < SURPLUS:
            return self.too_little(f"{FEWEST - surplus.n} more groups with log-probs are needed")
        text = (
            f"{same.sum() / sizes.sum():.0%} of the {sizes.sum():.0f} pairs inside {surplus.n} "
            f"groups are equal; the {WHOSE.get(sides[0], sides[0])}'s log-probs allow "
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

    def _told_by_none(self, groups: list[np.ndarray]) -> Finding:
        """What can be said without log-probs of what is drawn from."""
        share = mean_of(np.array([_repeated(one) for one in groups]))
        if not share.n:
            return self.too_little("groups of two completions or more are needed")
        level = Level.NOTE if share.low > MANY else Level.UNKNOWN
        return self.found(
            Level.OK if share.high < SURPLUS else level,
            f"{share.value:.0%} of the completions of {share.n} groups repeat another of their "
            "group. Whether more is than chance makes, only log-probs at the temperature that they "
            "are drawn at could say.",
            measured=share,
        )


def _repeated(texts: np.ndarray) -> float:
    """The share of a group's completions that stand in it before; NaN where there is nothing to
    compare."""
    known = [str(text) for text in texts if text is not None]
    return 1 - len(set(known)) / len(known) if len(known) > 1 else np.nan


def _completions(trace: Trace, tokens: Tokens | None) -> list[np.ndarray]:
    """The completions of each group, as texts or, where these were not recorded, as ids."""
    if "completion" in trace.rollouts or tokens is None:
        return trace.groups().each("completion")
    texts = np.array([ids.tobytes().hex() for ids in _each(tokens)], dtype=object)
    group = trace.groups().index[tokens.rollout_rows]
    return [texts[group == one] for one in np.unique(group)]


def _sides(trace: Trace) -> tuple[str, ...]:
    """Columns with log-probs of the distribution that is drawn from, the surest first."""
    if not is_watched(trace):
        return SIDES
    if _drawn_otherwise(trace):
        return ()
    taken = loss_temperature(trace)
    return () if taken is None else SIDES if taken == 1 else ("scored",)


def _drawn_otherwise(trace: Trace) -> bool:
    """Whether a watched loop seems to draw at another temperature than its loss takes."""
    try:
        return drawn_at(trace).nats > LIKELIER
    except NotRecorded:
        return False


def _is_known(tokens: Tokens, side: str) -> bool:
    """Whether one side's log-probs, and who wrote what, were recorded."""
    try:
        own = tokens.author == Author.MODEL
        # Some engines give 0 for what they do not know; certainty to the last bit is no policy's.
        return bool((getattr(tokens, side)[own] < 0).any())
    except NotRecorded:
        return False


def _chances(tokens: Tokens, side: str) -> np.ndarray:
    """The probability of each completion, NaN where no token has a log-prob; one that has none
    beside others counts as certain."""
    own, rows = tokens.author == Author.MODEL, len(tokens.rollout_rows)
    logps = np.where(own, getattr(tokens, side), np.nan)
    total = np.bincount(tokens.row, np.nan_to_num(logps), minlength=rows)
    known = np.bincount(tokens.row, np.isfinite(logps), minlength=rows) > 0
    return np.where(known, np.exp(np.minimum(total, 0.0)), np.nan)


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
