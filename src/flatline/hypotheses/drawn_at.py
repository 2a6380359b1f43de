"""At which temperature a watched loop draws its tokens, and whether its loss takes their log-probs
at the same.

Both of its log-probs come from the logits that the model gave, before the loop divided them by
anything: that they agree says nothing of a temperature. The tokens do, by how likely they are at
each (`flatline.live.watch.drawn` adds that up). What cannot be told from them is not known, and
`unsure` says why.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from flatline.errors import NotRecorded
from flatline.trace import Trace

FEWEST_TOKENS = 500
"""Drawn tokens that a temperature is read from."""
LIKELIER = 20.0
"""Nats by which these must be likelier at another temperature: by chance once in 10^8."""
RULED_OUT = 3.0
"""Nats less than at the likeliest temperature from which on one is ruled out: 20 times less likely.
Of two temperatures of which neither is, one would be guessed."""
HOTTER, COLDER = 2, 3
"""Temperatures, 15 % apart, by which it must differ. A sure policy whose least likely tokens are
cut off (top-p 0.9) cannot be told from a sampler that is 25 % colder."""
LEAST, NEAR = 0.1, 0.04
"""Share of the tokens with a choice that come from the least likely tenth, and how far off it may
be where a temperature is all that the sampler changes. What top-p leaves has none of them."""
FEWEST_IN_DOUBT = 200
"""Tokens with a choice that this share is taken of, to be certain of another temperature."""
FEWEST_KEPT = 60
"""The same, to rule out that the least likely tenth is cut off: 6 of them should come from it."""
BY_CHANCE = 2.5
"""Standard errors by which that share may be off."""
PLAIN = 0.75
"""Share of the trained rows of which every drawn token has a loss, and the same weight: others may
hold what was not drawn, or be corrected for how they were drawn."""


class DrawnAt(NamedTuple):
    """What the tokens of a watched loop say of the temperature that they were drawn at."""

    drawn: float
    """Where they are likeliest."""
    taken: float
    """What the loss divides logits by."""
    tokens: int
    rollouts: int
    nats: float
    """By which they are likelier there than at what the loss takes, or near it; at least 0."""
    low: float
    high: float
    """Of the temperatures that are not ruled out."""
    unsure: str
    """Why it cannot be told whether both are the same; empty where it can."""

    @property
    def favours(self) -> str:
        """What was recorded, in words."""
        said = f"{self.tokens} tokens of {self.rollouts} rollouts are likeliest as drawn at a "
        said += f"temperature of about {self.drawn:.2g}"
        more = f", by {self.nats:.0f} nats over that of the loss, {self.taken:g}"
        return said + (more if self.nats >= 1 else f"; the loss takes {self.taken:g}")

    @property
    def another(self) -> bool:
        """Whether they were certainly drawn at another temperature than the loss takes."""
        return not self.unsure and self.nats > LIKELIER


def is_watched(trace: Trace) -> bool:
    """Whether both log-probs are the model's own, at temperature 1, whatever the loop does next."""
    return trace.run.get("source") == "watch" or "drawn" in trace.run


def loss_temperature(trace: Trace) -> float | None:
    """The one temperature that the gradients of the loss show; None where they show several, or
    none is known."""
    try:
        found = trace.metric("loss_temperature")
    except NotRecorded:
        return None
    known = np.unique(found[np.isfinite(found)])
    return float(known[0]) if len(known) == 1 else None


def drawn_at(trace: Trace) -> DrawnAt:
    """Raises `NotRecorded` where nothing was seen drawn, or no temperature of the loss is known."""
    seen, taken = trace.run.get("drawn"), loss_temperature(trace)
    if not seen or seen["tokens"] < FEWEST_TOKENS:
        raise NotRecorded(f"{FEWEST_TOKENS} tokens as they are drawn, 8 rows or more at a time")
    if taken is None:
        raise NotRecorded("one temperature that the loss divides logits by")
    tried, logps = np.array(seen["temperatures"]), np.array(seen["logps"])
    best, own = int(logps.argmax()), int(np.abs(np.log(tried / taken)).argmin())
    left = tried[logps > logps[best] - RULED_OUT]
    found = DrawnAt(
        drawn=float(tried[best]),
        taken=taken,
        tokens=int(seen["tokens"]),
        rollouts=int(seen["rows"]),
        nats=float(max(logps[best] - logps[max(own - 1, 0) : own + 2].max(), 0.0)),
        low=float(left.min()),
        high=float(left.max()),
        unsure="",
    )
    apart = best - own
    if -COLDER < apart < HOTTER and found.nats <= LIKELIER:
        near = tried[max(own - COLDER + 1, 0)], tried[min(own + COLDER - 1, len(tried) - 1)]
        return found._replace(unsure=_unsure_of_the_same(found, near, seen, best))
    return found._replace(unsure=_unsure_of_another(found, seen, best, apart))


def _unsure_of_the_same(
    found: DrawnAt, near: tuple[float, float], seen: dict[str, Any], best: int
) -> str:
    if found.low < near[0] or found.high > near[1]:
        return f"any temperature from {found.low:.2g} to {found.high:.2g} may have drawn them"
    return _unlike_a_temperature(seen, best, FEWEST_KEPT)


def _unsure_of_another(found: DrawnAt, seen: dict[str, Any], best: int, apart: int) -> str:
    if found.nats <= LIKELIER:
        return f"{LIKELIER:g} nats are needed to be certain"
    if not 0 < best < len(seen["temperatures"]) - 1:
        return "beyond that none was tried; one token may be drawn for certain, as greedily"
    if -COLDER < apart < 0:
        return "a sampler that cuts unlikely tokens off looks as cold"
    if seen["plain_rows"] < PLAIN * seen["rows"]:
        return (
            f"the tokens of {seen['rows'] - seen['plain_rows']} of {seen['rows']} rollouts do not "
            "all have the same weight in the loss: some may not be drawn, or be corrected for how"
        )
    return _unlike_a_temperature(seen, best, FEWEST_IN_DOUBT)


def _unlike_a_temperature(seen: dict[str, Any], best: int, fewest: int) -> str:
    doubt = seen["in_doubt"][best]
    if doubt < fewest:
        return f"{doubt:.0f} of them were drawn where there was a choice; {fewest} are needed"
    share = seen["least"][best] / doubt
    by_chance = BY_CHANCE * math.sqrt(LEAST * (1 - LEAST) / doubt)
    if abs(share - LEAST) <= (NEAR if fewest == FEWEST_IN_DOUBT else max(NEAR, by_chance)):
        return ""
    return (
        f"{share:.0%} of those with a choice come from the least likely tenth, where {LEAST:.0%} "
        "should: something else than one temperature decides what is drawn, such as "
        + ("top-p" if share < LEAST else "copies of one draw, or two temperatures")
    )
