"""The loss is divided by the wrong number: by passes twice or never, or by tokens of one part.

## What goes wrong
An optimizer step may take several passes. Each must be divided so that they add up to the loss of
the whole: a missing division multiplies the gradient by the number of passes, a second one divides
it again, and means of means give short passes too much weight. Clipping then acts at another size,
and results change with the size of a pass, which should not matter at all.

## Sign
Losses that weigh tokens (`dapo`, `bnpo`, `dr_grpo`) with one update per batch have a value that
advantages and lengths determine: minus the sum of advantage times trained tokens, over the tokens.
The recorded loss against it, step by step: a straight line (correlation above 0.9) whose slope is
certainly outside 0.67 to 1.5 is suspected. The loss `grpo` is 0 whatever it is divided by, and a KL
term adds to it, so runs with either cannot be tested. Healthy: slope 1.00 in the 3 of 26 runs that
have one (0 of 26 alarm, interval 0 to 13 %).

## Probe
The gradient of the batch in as many passes as configured and in twice as many of half the size:
the norms must agree to 1 %. A ratio beyond 5 % is a fault; `bnpo` normalises by pass on purpose
and is noted. Where an epoch ends with fewer passes than a step has, the same passes as such a step:
the norm must be theirs. What differs is suspected if one step in ten is so short, else noted.
Healthy in the lab: 1e-8.

## Experiment
A run with the planted fault against the same without it, matched seeds; or one pass against several
of the same total size.

## Fix
Divide by the tokens (or sequences) of all passes and processes of a step, once. Trainer classes of
transformers divide by the passes themselves unless told otherwise.

## Not to be confused with
H24 learning-rate and H27 gradient-clipping: the size of the gradient is right, what is made of it
is not. Adam hides a constant factor, so the damage may be small.

## References
The gradient accumulation bug of 2024 (transformers, Unsloth), and its rest in the last step of an
epoch (transformers pull request 39659); TRL issue 6369 and its normalisers.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.weights import updates_once
from flatline.stats import LEVEL, Estimate, t_score
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.step_records import ShortStep
    from flatline.live.subject import Subject

BY_TOKENS = ("dapo", "bnpo", "dr_grpo")
"""Losses whose value advantages and lengths determine."""
SLOPE = 1.5
"""Factor by which recorded and expected loss differ. Healthy: 1.00. The smallest bug gives 2."""
STRAIGHT = 0.9
"""Correlation of the two over steps. Healthy: 0.98 and more."""
FEWEST = 6
"""Steps with a loss."""
OFTEN = 10
"""Steps of an epoch, of which one is the last, up to which that one matters."""
SAME, BROKEN = 0.01, 0.05
"""Difference of two norms that rounding explains, and one that it does not."""


class LossNormalisation(Hypothesis):
    id = "H28"
    name = "loss-normalisation"
    headline = "Your loss is divided by the wrong number."
    explains = ("H27",)
    meaning = "The size of the gradient depends on how a batch is cut into passes."
    fix = "Divide the loss once, by the tokens or sequences of all passes of a step."
    mechanism = "The gradient grows with the passes; in the other arm it does not."

    def sign(self, trace: Trace) -> Finding:
        """Is the recorded loss what advantages and lengths make it?"""
        kind, beta = trace.settings.get("loss_type"), trace.settings.get("beta")
        once = updates_once(trace.settings)
        if kind not in BY_TOKENS or beta or not once:
            return self.found(
                Level.UNKNOWN,
                f"Could not be tested: with loss_type {kind or 'unknown'}, "
                f"beta {'unknown' if beta is None else beta} and "
                f"{'one update' if once else 'several updates'} per batch the value of the loss "
                "says nothing about its scale. `flatline checkup` can test it.",
                needs="Check the live trainer with `flatline.checkup(trainer)`",
            )
        expected, seen = _losses(trace, kind)
        if len(seen) < FEWEST:
            return self.too_little(f"{FEWEST - len(seen)} more steps are needed")
        slope, straight = _line(expected, seen)
        if straight < STRAIGHT:
            return self.too_little(
                f"recorded and expected loss have a correlation of {straight:.2f} only"
            )
        off = slope.low > SLOPE or slope.high < 1 / SLOPE
        return self.found(
            Level.SUSPECT if off else Level.OK,
            f"The recorded loss is {slope.value:.2f} [{slope.low:.2f}, {slope.high:.2f}] times "
            f"what advantages and lengths make it ({len(seen)} steps).",
            measured=slope,
            expected="1",
            severity=max(slope.value, 1 / max(slope.value, 1e-6)) / SLOPE,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Is the gradient the same in twice as many passes, and at the end of an epoch?"""
        found = subject.accumulation()
        if found is None or not np.isfinite(found.ratio):
            return self.too_little("the batch cannot be halved, or has no gradient")
        off = abs(np.log(max(found.ratio, 1e-12)))
        local = subject.settings.get("loss_type") == "bnpo"
        level = Level.FAULT if off > BROKEN and not local else Level.OK
        short = found.short
        if level is Level.OK and short is not None and abs(short.ratio - 1) > BROKEN:
            return self._short(short)
        turned = f" (cosine {found.cosine:.4f})" if np.isfinite(found.cosine) else ""
        return self.found(
            Level.NOTE if level is Level.OK and off > SAME else level,
            f"In {found.passes[1]} passes instead of {found.passes[0]} the gradient of the batch "
            f"is {found.ratio:.3f} times as long{turned}.",
            measured=found.ratio,
            expected="1.00",
            severity=off / BROKEN,
            looked_at=sum(found.passes),
        )

    def _short(self, short: "ShortStep") -> Finding:
        return self.found(
            Level.SUSPECT if short.steps <= OFTEN else Level.NOTE,
            f"An epoch ends with a step of {short.passes} instead of {short.usual} passes, and "
            f"passes are divided as if all were there: half of a step has a gradient "
            f"{short.ratio:.3f} times as long as the same passes when they are a whole one.",
            measured=short.ratio,
            expected="1.00",
            severity=abs(short.ratio - 1) / BROKEN,
            fix="Take a dataset whose passes `gradient_accumulation_steps` divides, or "
            "transformers 4.55 or later.",
        )


def _losses(trace: Trace, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Expected and recorded loss of every step that has both."""
    step, loss = trace.steps["step"], trace.steps["loss"]
    rollouts = trace.rollouts
    tokens = np.nan_to_num(rollouts["trained_tokens"])
    steps, index = np.unique(rollouts["step"], return_inverse=True)
    total = np.bincount(index, np.nan_to_num(rollouts["advantage"]) * tokens)
    longest = float(trace.settings.get("max_completion_length") or np.nan)
    size = np.bincount(index, np.full(len(index), longest) if kind == "dr_grpo" else tokens)
    seen = dict(zip(step.tolist(), loss.tolist(), strict=True))
    recorded = np.array([seen.get(one, np.nan) for one in steps.tolist()])
    expected = -total / np.maximum(size, 1e-9)
    known = np.isfinite(recorded) & np.isfinite(expected)
    return expected[known], recorded[known]


def _line(x: np.ndarray, y: np.ndarray) -> tuple[Estimate, float]:
    """Slope of y on x with its interval, and their correlation."""
    n, off, up = len(x), x - x.mean(), y - y.mean()
    spread = float((off**2).sum())
    if spread == 0 or not up.any():
        return Estimate(0.0, -np.inf, np.inf, n), 0.0
    slope = float((off * up).sum()) / spread
    left = float(((up - slope * off) ** 2).sum())
    half = t_score(n - 2, LEVEL) * math.sqrt(left / (n - 2) / spread)
    straight = slope * math.sqrt(spread / float((up**2).sum()))
    return Estimate(slope, slope - half, slope + half, n), straight
