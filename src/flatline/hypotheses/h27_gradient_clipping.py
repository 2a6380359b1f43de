"""Gradients are clipped to almost nothing, and Adam's epsilon decides what is left.

## What goes wrong
Adam divides a gradient by its own typical size, so shortening all gradients alike cancels out. It
does not cancel where a clipped gradient is no larger than epsilon: every step then is shorter than
the learning rate says, the more the smaller the gradient. Clipping only some steps weighs down
those that had most to say.

## Sign
The norm after clipping over the root of the number of trained weights is the size of a typical
element. Certainly below ten times epsilon (1e-8 unless recorded) is suspected, unless the reward
rises; below a hundred times it is noted, and so is a clip that shortens most steps by more than
ten times. Healthy: 5300 times epsilon or more (0 of 26 runs, interval 0 to 13 %).

## Probe
The same on the gradient of one batch.

## Experiment
`max_grad_norm` in use against 1, where it is smaller, or a planted fault against none; matched
seeds, the same learning rate.

## Fix
`max_grad_norm` of 0.5 to 1, or 0 for none. With losses divided by a large length (dr_grpo) a
smaller `adam_epsilon`, such as 1e-12.

## Not to be confused with
H24 learning-rate: steps are as long as the rate says, and the rate is too low. H26
optimizer-not-stepping: nothing moves at all. H32 zero-variance-groups: there is no gradient.

## References
verifiers' `grpo_defaults` set `max_grad_norm=0.01`: 1.1e-7 an element for 7.6e9 trained weights,
near epsilon, and 1.6e-6 for 4e7 of LoRA, which is fine. The seeds used 0.01 to 0.1 with LoRA.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import mean_of, reward_rises
from flatline.hypotheses.logs import setting
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

EPSILON = 1e-8
"""Adam's, where it is not recorded."""
NO_EPSILON = "Adam's epsilon is 0, so how short gradients are clipped changes no step."
SWALLOWED = 10.0
"""Size of a typical element in units of epsilon. At 10 a step has lost a tenth of its length."""
NEAR = 100.0
"""The same, worth a note. Healthy: 5300 (dr-grpo) and more."""
HARD = 10.0
"""Times by which a clip shortens that is worth a note."""
FEWEST = 3
"""Steps that a mean is taken over."""
USUAL = 1.0
"""The clip that most trainers have."""


class GradientClipping(Hypothesis):
    id = "H27"
    name = "gradient-clipping"
    headline = "Gradient clipping leaves almost nothing of your updates."
    explains = ("H24",)
    meaning = "Steps are shorter than the learning rate says, and the log does not show it."
    fix = "Raise {max_grad_norm}, or lower {adam_epsilon}."
    mechanism = "Gradients end up at Adam's epsilon; in the other arm far above it."

    def sign(self, trace: Trace) -> Finding:
        """How large is a typical element of a clipped gradient?"""
        norm = trace.steps["grad_norm"]
        norm = norm[np.isfinite(norm) & (norm > 0)]
        if len(norm) < FEWEST:
            return self.too_little(f"{FEWEST - len(norm)} more steps with a gradient are needed")
        epsilon = _epsilon(trace)
        if epsilon == 0:
            return self.not_applicable(NO_EPSILON, excluded_by="adam_epsilon")
        clip, weights = _clip(trace), _trained_weights(trace)
        kept = np.minimum(norm, clip) if clip else norm
        size = mean_of(kept / math.sqrt(weights))
        hard = float(np.mean(norm / kept > HARD))
        text = (
            f"A typical element of the clipped gradient is {size.value:.2g}, "
            f"{size.value / epsilon:.2g} times Adam's epsilon; {np.mean(norm > kept):.0%} of the "
            f"steps are clipped."
        )
        if size.high < SWALLOWED * epsilon and not reward_rises(trace):
            level = Level.SUSPECT
        else:
            level = Level.NOTE if size.high < NEAR * epsilon or hard > 0.5 else Level.OK
        return self.found(
            level,
            text,
            measured=size,
            expected=f"above {NEAR * epsilon:.0e}",
            severity=SWALLOWED * epsilon / max(size.value, 1e-30),
        )

    def probe(self, subject: "Subject") -> Finding:
        """How large is a typical element in the batch?"""
        census = subject.one_step().gradients
        if not 0 < census.total_norm < math.inf:
            return self.too_little("the batch has no gradient that is a number; see H26 and H32")
        clip = census.max_grad_norm or math.inf
        size = min(census.total_norm, clip) / math.sqrt(max(int(census.sizes.sum()), 1))
        epsilon = EPSILON if census.epsilon is None else census.epsilon
        if epsilon == 0:
            return self.not_applicable(NO_EPSILON, excluded_by="adam_epsilon")
        low, near = size < SWALLOWED * epsilon, size < NEAR * epsilon
        return self.found(
            Level.SUSPECT if low else Level.NOTE if near else Level.OK,
            f"The batch's gradient has the norm {census.total_norm:.2g} and is clipped at "
            f"{clip:.2g}: a typical element is {size / epsilon:.2g} times Adam's epsilon.",
            measured=size,
            expected=f"above {NEAR * epsilon:.0e}",
            severity=SWALLOWED * epsilon / size,
            looked_at=len(census.sizes),
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """A tight clip against the usual one."""
        if not 0 < config.max_grad_norm < USUAL:
            return None
        return Setting(
            "max_grad_norm",
            USUAL,
            control=f"gradients clipped at {config.max_grad_norm:g}",
            treated=f"gradients clipped at {USUAL:g}",
        )


def _clip(trace: Trace) -> float | None:
    """None where nothing is clipped. Hooks on the optimizer hear a clip; a loop that records itself
    says it."""
    if trace.run.get("source") == "watch":
        return trace.settings.get("max_grad_norm")
    found: float | None = setting(trace, "max_grad_norm")
    return found


def _trained_weights(trace: Trace) -> float:
    """How many weights share the gradient."""
    step, size = trace.weights["step"], trace.weights["size"]
    return max(1.0, float(np.nansum(size[step == step[0]])))


def _epsilon(trace: Trace) -> float:
    asked = trace.run.get("trl")
    found = asked.get("adam_epsilon") if isinstance(asked, dict) else None
    return float(found) if isinstance(found, int | float) and found >= 0 else EPSILON
