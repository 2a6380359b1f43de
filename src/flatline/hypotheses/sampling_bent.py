"""Whether the sampler's own parameters make its gap to the trainer: top-p, penalties and the like.

They change the distribution that is drawn from, and the trainer scores without them. By how much
each drawn token was changed is recorded where transformers samples; elsewhere a gap that lies on
one side tells of tokens that were cut off.
"""

from typing import NamedTuple

from flatline.hypotheses.logprobs import Gaps
from flatline.trace import Trace

ACCOUNTS = 0.5
"""Share of a gap that the sampler's own processors must make, to be its reason. They make all of it
or, beside a lost context or other weights, next to nothing."""
KEEPS_ALL = {"top_p": (1,), "top_k": (0, -1), "min_p": (0,), "repetition_penalty": (1,)}
"""Settings that leave the distribution as it is."""


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
