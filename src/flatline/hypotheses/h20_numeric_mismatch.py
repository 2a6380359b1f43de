"""Sampler and trainer compute the same weights at different precision: two policies from the start.

## What goes wrong
Other kernels and other precisions give other log-probs for the same weights, most of all for
unlikely tokens and long contexts. The gradient is that of a policy which did not sample. Small
differences are usual and harmless; large ones end in a collapse after a few hundred steps.

## Sign
The first step, where both sides hold the same weights: mean |sampler - trainer| over the trained
tokens, with the 99th percentile and the largest. In float32 certainly above 0.005 nat is suspected;
in 16 bits, where 0.005 to 0.025 is usual, certainly above 0.05. It is the last explanation: a lost
context, another template, another temperature or dropout show the same number and explain it. If
the model drops anything while it is scored, its noise hides the precision. Healthy in float32: 6e-7
(0 of 26 runs, interval 0 to 13 %); for bf16 three published runs.

## Probe
The sign, read on one batch of the live trainer.

## Experiment
`bf16` against float32, or a planted fault against none; matched seeds.

## Fix
The same precision on both sides (fp16 has three bits more than bf16), the head in fp32
(`cast_lm_head_to_fp32`), and a correction of single tokens with the sampler's own log-probs.

## Not to be confused with
H09, H10, H11, H12, H15, H16, H21 and H23 all make the two differ before any update, and each shows
its own evidence. H18 and H19 differ only after an update. H22 is what a correction makes of this.

## References
"Defeating the Training-Inference Mismatch via FP16" (arXiv 2510.26788); Yao et al. on truncated
importance sampling; "When Speed Kills Stability"; IcePop (arXiv 2510.18855).
"""

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.logprobs import at_equal_weights
from flatline.hypotheses.sampling_bent import bent_by
from flatline.trace import Trace

APART, APART_BF16 = 5e-3, 0.05
"""Mean nats. Healthy in float32: 6e-7; in bf16 published runs have 0.0045, 0.0135 and 0.0236."""
NOTED, NOTED_BF16 = 1e-4, 0.025
"""Mean nats from which it is worth a note."""
BEYOND = 10.0
"""Times the limit, beyond which no precision takes two passes of one model apart."""
DISAGREE = "Your sampler and your trainer disagree about tokens by more than precision explains."
LOOK = (
    "Ask `flatline.checkup(trainer)`: it compares each side with the model itself, and names what "
    "is computed with another context, mask, position or temperature."
)
FEWEST = 3
"""Prompts that a mean is taken over."""


class NumericMismatch(Hypothesis):
    id = "H20"
    name = "numeric-mismatch"
    headline = "Your sampler and your trainer compute with different precision."
    explains = ("H22", "H24")
    meaning = "The gradient belongs to another policy than the one that sampled."
    fix = "Use one precision on both sides, or correct token by token with the sampler's log-probs."
    mechanism = "Sampler and trainer differ at equal weights; in the other arm they agree."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """How far are sampler and trainer apart before any update?"""
        gaps = at_equal_weights(trace)
        mean = gaps.mean()
        if mean.n < FEWEST:
            return self.too_little(f"{FEWEST - mean.n} more prompts in the first step are needed")
        size = np.abs(gaps.gap)
        limit, noted = (APART_BF16, NOTED_BF16) if gaps.coarse else (APART, NOTED)
        suspect = mean.low > limit
        dropout = trace.settings.get("dropout")
        if suspect and dropout:
            return self.too_little(
                f"dropout of {dropout:g} is on while tokens are scored, and differs from the "
                f"sampler by itself ({mean.value:.2g} nat per token); without it "
                "(`disable_dropout`) precision would show"
            )
        bent = bent_by(trace, gaps) if suspect else None
        if bent is not None:
            return self.too_little(
                f"the sampler draws with {', '.join([*bent.asked, *bent.unasked])}, which makes "
                f"the gap of {mean.value:.2g} nat per token; see H21. Without it precision would "
                "show"
            )
        beyond = mean.low > BEYOND * limit
        return self.found(
            Level.SUSPECT if suspect else Level.NOTE if mean.low > noted else Level.OK,
            f"Before any update sampler and trainer differ by {mean.value:.2g} [{mean.low:.2g}, "
            f"{mean.high:.2g}] nat per token (99 % below {np.quantile(size, 0.99):.2g}, at most "
            f"{size.max():.2g}).",
            measured=mean,
            expected=f"below {limit:g}",
            evidence=gaps.worst(trace, gaps.unsure) if suspect else (),
            severity=mean.value / limit,
            headline=DISAGREE if beyond else None,
            fix=LOOK if beyond else None,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """Mixed precision against float32."""
        if not config.bf16:
            return None
        return Setting("bf16", False, control="bf16", treated="float32")
