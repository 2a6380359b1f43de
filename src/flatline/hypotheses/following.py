"""Does the sampler follow the trainer's updates exactly? What two hypotheses ask of a trace.

With the same weights sampler and trainer agree to rounding, and float32 rounds little. Where they
agree before the first update and no longer after it, although no rollout names older weights, the
sampler computes with something that is nearly those weights.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flatline.hypotheses.logprobs import ROUNDING
from flatline.hypotheses.weights import allowed_lag, names_newest, trains_later
from flatline.trace import Trace
from flatline.trace.settings import is_half

if TYPE_CHECKING:
    from flatline.live.subject import Subject

APART = 1e-3
"""Nats by which they part once the weights have changed. Healthy in float32: 7e-7 at most."""
APART_BF16 = 0.05
"""The same in 16 bits, as in H20: while an adapter adds nothing there is nothing of it to round, so
that both may agree to the last bit before the first update and not after it. Healthy: 0.001."""
FEWEST = 3
"""Steps after the first that are needed."""
NEARLY = 0.02
"""Gap after one step, as a share of what the step changed. Healthy in float32: 4e-6."""
NEARLY_BF16 = 0.5
"""The same in 16 bits, whose own noise is as large as a step. A guess that no run has tested."""
KEPT = 0.1
"""Share of the step's change by which a sampler that kept the old weights differs from them at
most; such a one is H06's."""
OTHER = 10.0
"""Gap after one step, as a multiple of what the step changed, that no update which arrives in part
leaves: the sampler has other weights, which is H06's. Planted: 0.6 merged with rounding, 250 merged
twice."""


class Following(NamedTuple):
    """How a sampler follows the weights."""

    nearly: bool
    """It follows, but not exactly."""
    value: float
    """The gap after an update, in nats."""
    text: str
    """The same in words."""
    steps: int
    """After which the gap was looked at."""


def followed(trace: Trace) -> Following | str:
    """From the gaps of a run's steps; text where it cannot be determined."""
    step, gap = trace.steps["step"], trace.steps["logprob_gap"]
    # A later pass over the same completions is behind by design.
    known = np.isfinite(gap) & np.isin(step, trace.rollouts["step"])
    step, gap = step[known], gap[known]
    if len(step) <= FEWEST or step[0] != 1:
        return f"{FEWEST + 1} steps from the first on are needed"
    if gap[0] > ROUNDING:
        return (
            f"sampler and trainer differ by {gap[0]:.2g} nat before any update, for another reason"
        )
    if trains_later(trace.settings):
        return "a generation serves several updates, so that some rollouts are trained after one"
    if allowed_lag(trace) or not names_newest(trace, step[1 : FEWEST + 1]).all():
        return "rollouts name older weights; see H06 and H17"
    late = float(np.median(gap[1:]))
    # One update is enough to part them; what parts later has another cause.
    limit = APART_BF16 if is_half(trace.settings) else APART
    nearly = gap[1] > ROUNDING and late > limit
    text = (
        f"Sampler and trainer agree before the first update ({gap[0]:.2g} nat per token), differ "
        f"by {gap[1]:.2g} after it and by {late:.2g} later, with {_named(trace)}."
    )
    return Following(nearly, late, text, len(gap) - 1)


def _named(trace: Trace) -> str:
    known = "weight_version" in trace.rollouts
    return "the newest weights" if known else "weights that no rollout names"


def followed_one_step(subject: "Subject") -> Following | str:
    """From one real optimizer step of a live trainer."""
    done = subject.stepped_delivery()
    if not np.isfinite([done.gap_new, done.gap_old]).all():
        return "the sampler gives no log-probs"
    exact = is_half(subject.settings) is False
    if done.visible < APART or done.gap_before > (ROUNDING if exact else done.visible / 2):
        return (
            f"a step changes log-probs by {done.visible:.2g} nat, and sampler and trainer differ "
            f"by {done.gap_before:.2g} before it"
        )
    share = done.gap_new / done.visible
    least = NEARLY if exact else NEARLY_BF16
    nearly = least < share < OTHER and done.gap_old > KEPT * done.visible
    text = (
        f"One step changes the trainer's log-probs by {done.visible:.2g} nat; the sampler follows "
        f"to within {done.gap_new:.2g} ({share:.1%}) and is {done.gap_old:.2g} from the old "
        "weights."
    )
    if share > least and not nearly:
        return f"the sampler has other weights after a step, or still the old ones; see H06. {text}"
    return Following(nearly, share, text, 1)
