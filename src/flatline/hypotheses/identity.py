"""Ids that are trained against ids that were sampled: exact, where the recorder knew both."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import some_steps
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.tokens import Divergence, Tokens

RARE = 0.01
"""Share of the rollouts below which other ids are only noted. An invariant: healthy: none."""
BEFORE, AFTER = 6, 12
"""Tokens in front of a difference and behind it that an example quotes, at most."""
SHOWN = 80
"""Characters of each text."""
GOES_ON = 6
"""Tokens that must agree again behind a gap."""
OF_TEMPLATE = 3
"""Different gaps that a template may leave, after a call, an answer and a question; rollouts of a
prompt often say the same, so words of the model give more, but not one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What is not trained as it was sampled, by where it begins. One entry per rollout."""

    rollouts: int
    """Rollouts that were compared."""
    place: Sequence[tuple[int, int]] = ()
    """Step and number of each rollout that a divergence may name."""
    prompts: Sequence[Divergence] = ()
    """The prompt differs."""
    edges: Sequence[Divergence] = ()
    """The completion differs from where a turn of the model begins, or between turns."""
    inside: Sequence[Divergence] = ()
    """The completion differs inside the model's own words."""
    stripped: Sequence[Divergence] = ()
    """The completion lacks words of the model where it first differs, and goes on as sampled."""


def identity(trace: Trace) -> Identity | None:
    """The comparison over a few recorded steps; None where no rollout says what was sampled."""
    if "as_sampled" not in trace.rollouts:
        return None
    same = trace.rollouts["as_sampled"]
    if not (same == 0).any():
        return Identity(rollouts=int(np.isfinite(same).sum()))
    tokens = trace.tokens(steps_that_differ(trace))
    found = tokens.divergences
    if not found:
        raise NotRecorded("tokens.sampled_ids")
    lacking = _lacking_words(found)
    kinds = ["stripped" if id(one) in lacking else _kind(tokens, one) for one in found]
    rows = tokens.rollout_rows
    step, number = (trace.rollouts[name][rows].astype(int) for name in ("step", "rollout"))
    return Identity(
        rollouts=int(np.isfinite(same[rows]).sum()),
        place=list(zip(step.tolist(), number.tolist(), strict=True)),
        **{
            name: [one for one, kind in zip(found, kinds, strict=True) if kind == name]
            for name in ("prompts", "edges", "inside", "stripped")
        },
    )


def judged(
    hypothesis: Hypothesis,
    trace: Trace,
    known: Identity,
    wrong: Sequence[Divergence],
    text: str,
    *,
    proven: bool,
) -> Finding:
    """What a hypothesis finds in the rollouts that are not trained as they were sampled."""
    share = len({one.row for one in wrong}) / max(known.rollouts, 1)
    level = Level.FAULT if share >= RARE else Level.NOTE
    return hypothesis.found(
        level if wrong else Level.OK,
        text,
        measured=share,
        expected="0 rollouts",
        evidence=shown(trace, known, wrong),
        severity=10 * share if wrong else 1.0,
        proven=proven,
        points_at_cause=True,
        looked_at=known.rollouts,
    )


def shown(trace: Trace, known: Identity, found: Sequence[Divergence], n: int = 3) -> list[Evidence]:
    """Both texts around the first difference of some rollouts."""
    return [
        Evidence(
            text=f"{'prompt' if one.in_prompt else 'completion'}, after {_before(trace, one)}: "
            f"sampled {_from(trace, one.sampled, one.position)}, "
            f"trained {_from(trace, one.trained, one.position)}",
            step=known.place[one.row][0],
            rollout=known.place[one.row][1],
        )
        for one in found[:n]
    ]


def steps_that_differ(trace: Trace) -> list[int]:
    """A few recorded steps, and the first of them that has other ids than were sampled."""
    steps, differs = trace.token_steps, trace.rollouts["as_sampled"] == 0
    wanted = steps[np.isin(steps, trace.rollouts["step"][differs])]
    return sorted({*some_steps(trace), *wanted[:1].tolist()})


def _kind(tokens: Tokens, one: Divergence) -> str:
    if one.in_prompt:
        return "prompts"
    at = int(np.searchsorted(tokens.row, one.row)) + min(one.position, len(one.trained) - 1)
    in_words = len(one.trained) > 0 and tokens.author[at] == Author.MODEL
    return "inside" if in_words and not tokens.first_of_turn[at] else "edges"


def _lacking_words(found: Sequence[Divergence]) -> set[int]:
    """Objects whose completion lacks ids that are not the template's: they differ by rollout."""
    gaps = [(one, _gap(one)) for one in found if not one.in_prompt]
    known = [(one, gap) for one, gap in gaps if gap]
    varied = len({gap for _, gap in known}) > OF_TEMPLATE
    return {id(one) for one, _ in known} if varied else set()


def _gap(one: Divergence) -> tuple[int, ...]:
    """The sampled ids that are missing where the two first differ, if they then go on alike."""
    behind = one.trained[one.position : one.position + GOES_ON].tolist()
    if len(behind) < GOES_ON or len(one.trained) >= len(one.sampled):
        return ()
    sampled = one.sampled.tolist()
    for start in range(one.position + 1, len(sampled) - GOES_ON + 1):
        if sampled[start : start + GOES_ON] == behind:
            return tuple(sampled[one.position : start])
    return ()


def _before(trace: Trace, one: Divergence) -> str:
    shared = one.trained[max(one.position - BEFORE, 0) : one.position]
    return repr(trace.decode(shared)[-SHOWN:])


def _from(trace: Trace, ids: np.ndarray, at: int) -> str:
    return repr(trace.decode(ids[at : at + AFTER])[:SHOWN]) if at < len(ids) else "nothing more"
