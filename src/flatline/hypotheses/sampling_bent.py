"""Whether the sampler's own parameters make its gap to the trainer: top-p, penalties and the like.

They change the distribution that is drawn from, and the trainer scores without them. By how much
each drawn token was changed is recorded where transformers samples; elsewhere a gap that lies on
one side tells of tokens that were cut off.
"""

from typing import NamedTuple

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.logprobs import Gaps
from flatline.trace import Trace

ACCOUNTS = 0.5
"""Share of a gap that the sampler's own processors must make, to be its reason. They make all of it
or, beside a lost context or other weights, next to nothing."""
KEEPS_ALL = {"top_p": (1,), "top_k": (0, -1), "min_p": (0,), "repetition_penalty": (1,)}
"""Settings that leave the distribution as it is."""


FEWEST_TOKENS = 500
"""Drawn tokens of a watched loop that a temperature is read from."""
LIKELIER = 20.0
"""Nats by which these must be likelier at another temperature: by chance once in 10^8."""
HOTTER, COLDER = 2, 3
"""Temperatures, 15 % apart, by which it must differ. A sure policy whose least likely tokens are
cut off (top-p 0.9) cannot be told from a sampler that is 25 % colder."""
LEAST, NEAR = 0.1, 0.04
"""Share of the tokens with a choice that come from the least likely tenth, and how far off it may
be where a temperature is all that the sampler changes. What top-p leaves has none of them."""
FEWEST_IN_DOUBT = 200
"""Tokens with a choice that this share is taken of."""
PLAIN = 0.75
"""Share of the trained rows of which every drawn token has a loss, and the same weight: others may
hold what was not drawn, or be corrected for how they were drawn."""


class DrawnAt(NamedTuple):
    """A watched loop that draws at another temperature than its loss takes."""

    drawn: float
    taken: float
    tokens: int
    nats: float
    """By which the tokens are likelier, all of them together."""


class Bent(NamedTuple):
    """Parameters in force that change the distribution, as text."""

    asked: list[str]
    unasked: list[str]


def asked_to_bend(trace: Trace) -> list[str]:
    """Settings that change the distribution, as text."""
    found = {name: trace.settings.get(name) for name in KEEPS_ALL}
    return [
        f"`{name}` {value:g}"
        for name, value in found.items()
        if value is not None and value not in KEEPS_ALL[name]
    ]


def bent_by(trace: Trace, gaps: Gaps) -> Bent | None:
    """What makes the gap; None where it is made otherwise, or where that is not known."""
    bent = trace.run.get("sampling_bent")
    if bent is None:
        cuts = asked_to_bend(trace)
        return Bent(cuts, []) if cuts and gaps.one_sided else None
    if bent["nats"] < ACCOUNTS * gaps.mean().value:
        return None
    told = {name: f"`{name}` {value:g}" for name, value in bent["parameters"].items()}
    unasked = [told[name] for name in bent["unasked"]]
    return Bent([text for text in told.values() if text not in unasked], unasked)


def drawn_at_another(trace: Trace) -> DrawnAt | None:
    """None where tokens are drawn as the loss assumes, or where that is not known."""
    seen, taken = trace.run.get("drawn"), _taken(trace)
    if seen is None or taken is None or seen["tokens"] < FEWEST_TOKENS:
        return None
    tried, logps = np.array(seen["temperatures"]), np.array(seen["logps"])
    best, own = int(logps.argmax()), int(np.abs(np.log(tried / taken)).argmin())
    nats = float(logps[best] - logps[max(own - 1, 0) : own + 2].max())
    share = seen["least"][best] / max(seen["in_doubt"][best], 1)
    other = not -COLDER < best - own < HOTTER and 0 < best < len(tried) - 1 and nats > LIKELIER
    sure = abs(share - LEAST) <= NEAR and seen["in_doubt"][best] >= FEWEST_IN_DOUBT
    sure = sure and seen["plain_rows"] >= PLAIN * seen["rows"]
    found = DrawnAt(float(tried[best]), taken, seen["tokens"], nats)
    return found if other and sure else None


def _taken(trace: Trace) -> float | None:
    """The one temperature that the gradients of the loss show; None where they show several."""
    try:
        found = trace.metric("loss_temperature")
    except NotRecorded:
        return None
    known = np.unique(found[np.isfinite(found)])
    return float(known[0]) if len(known) == 1 else None
