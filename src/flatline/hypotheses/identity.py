"""Ids that are trained against ids that were sampled: exact, where the recorder knew both."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flatline.hypotheses.base import Evidence
from flatline.hypotheses.logprobs import some_steps
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.tokens import Divergence, Tokens

BEFORE, AFTER = 6, 12
"""Tokens in front of a difference and behind it that an example quotes, at most."""
SHOWN = 80
"""Characters of each text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What is not trained as it was sampled, by where it begins. One entry per rollout."""

    rollouts: int
    """Rollouts that were compared."""
    prompts: Sequence[Divergence] = ()
    """The prompt differs."""
    edges: Sequence[Divergence] = ()
    """The completion differs from where a turn of the model begins, or between turns."""
    inside: Sequence[Divergence] = ()
    """The completion differs inside the model's own words."""


def identity(trace: Trace) -> Identity | None:
    """The comparison over a few recorded steps; None where no rollout says what was sampled."""
    if "as_sampled" not in trace.rollouts:
        return None
    same = trace.rollouts["as_sampled"]
    if not (same == 0).any():
        return Identity(rollouts=int(np.isfinite(same).sum()))
    tokens = trace.tokens(some_steps(trace))
    found = tokens.divergences
    kinds = [_kind(tokens, one) for one in found]
    return Identity(
        rollouts=int(np.isfinite(same[tokens.rollout_rows]).sum()),
        **{
            name: [one for one, kind in zip(found, kinds, strict=True) if kind == name]
            for name in ("prompts", "edges", "inside")
        },
    )


def shown(trace: Trace, found: Sequence[Divergence], n: int = 3) -> list[Evidence]:
    """Both texts around the first difference of some rollouts."""
    rows = trace.tokens(some_steps(trace)).rollout_rows
    return [
        Evidence(
            text=f"{'prompt' if one.in_prompt else 'completion'}, after {_before(trace, one)}: "
            f"sampled {_from(trace, one.sampled, one.position)}, "
            f"trained {_from(trace, one.trained, one.position)}",
            step=int(trace.rollouts["step"][rows[one.row]]),
            rollout=int(trace.rollouts["rollout"][rows[one.row]]),
        )
        for one in found[:n]
    ]


def _kind(tokens: Tokens, one: Divergence) -> str:
    if one.in_prompt:
        return "prompts"
    at = int(np.searchsorted(tokens.row, one.row)) + min(one.position, len(one.trained) - 1)
    in_words = len(one.trained) > 0 and tokens.author[at] == Author.MODEL
    return "inside" if in_words and not tokens.first_of_turn[at] else "edges"


def _before(trace: Trace, one: Divergence) -> str:
    shared = one.trained[max(one.position - BEFORE, 0) : one.position]
    return repr(trace.decode(shared)[-SHOWN:])


def _from(trace: Trace, ids: np.ndarray, at: int) -> str:
    return repr(trace.decode(ids[at : at + AFTER])[:SHOWN]) if at < len(ids) else "nothing more"
