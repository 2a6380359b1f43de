"""The correction for the sampler's differences takes most of the gradient away.

## What goes wrong
Trainers that sample with vLLM weigh each sequence by the ratio of the trainer's probability to the
sampler's. The log-ratios of all its tokens add up: 0.03 nat of noise a token is a factor of 2.6
either way after 1000 tokens. Sequences above the cap are left out, the others count less, and long
ones least of all.

## Sign
TRL's logged mean weight (`sampling/importance_sampling_ratio/mean`), or the weights of vLLM's
rollouts from both recorded log-probs. A mean that is certainly below one half, or an effective
share (sum of weights squared over n times the sum of squares) certainly below one half, is
suspected; a mean below 0.8 is noted. Trainers without such a correction cannot have it. Healthy: 26
runs of the lab have no correction; the thresholds are by reason and a published run (mean 0.46).

## Probe
None of its own: one batch of a trainer without vLLM has no weights.

## Experiment
A run with the planted fault against the same without it, matched seeds. With vLLM: `sequence_mask`
against `token_truncate` against no correction.

## Fix
`vllm_importance_sampling_mode="token_truncate"`, or average the log-ratios of a sequence; then make
the differences themselves smaller (H20).

## Not to be confused with
H20 numeric-mismatch, H21 sampling-parameters and H10 template-drift are where the differences come
from; this is what becomes of them. H29 ratio-clipping: the ratio to the older policy, not to the
sampler.

## References
TRL issues 4772 (0.012 nat a token, 100 tokens: 3.3, above the cap of 3), 5814 (the mean of sums is
0.569, of averages 0.993) and 6688. TRL's default is `sequence_mask` with a cap of 3.
"""

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.arms import fault_taken_out
from flatline.hypotheses.base import Arms, Finding, Hypothesis, Level
from flatline.hypotheses.groups import mean_of
from flatline.hypotheses.logprobs import some_steps
from flatline.stats import Estimate
from flatline.trace import Trace

METRIC = "sampling/importance_sampling_ratio/mean"
"""What TRL calls the mean weight of a step."""
CAP = 3.0
"""Above which TRL leaves a sequence out."""
HALF, NOTED = 0.5, 0.8
"""Mean weight, and effective share of the sequences, that are too small; and worth a note."""
FEWEST = 3
"""Steps that a mean is taken over."""
LOOKED_AT = 6
"""Recorded steps whose weights are computed."""


class ImportanceWeights(Hypothesis):
    id = "H22"
    name = "importance-weights"
    explains = ("H24",)
    meaning = "Most sequences hardly count, and long ones least of all."
    fix = 'Set vllm_importance_sampling_mode="token_truncate" with a cap of 2.'
    mechanism = "Sequences are weighted down or left out; in the other arm all count."

    def sign(self, trace: Trace) -> Finding:
        """How much of the sequences is left after the correction?"""
        if METRIC in trace.metric_names:
            return self._judge(mean_of(trace.metric(METRIC)), "The mean weight of a sequence is")
        engine = trace.settings.get("engine")
        if engine is None:
            raise NotRecorded(f"steps.metrics[{METRIC!r}]")
        if not str(engine).startswith("vllm"):
            return self.not_applicable(f"the engine {engine!r} has no such correction.")
        shares = np.array([_effective(trace, step) for step in some_steps(trace, LOOKED_AT)])
        return self._judge(mean_of(shares), "The effective share of the sequences is")

    def experiment(self, config: RunConfig) -> Arms | None:
        """Without the fault, where one is planted: flatline's own sampler needs no correction."""
        return fault_taken_out(self, config)

    def _judge(self, share: Estimate, text: str) -> Finding:
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more steps with weights would do")
        level = Level.OK if share.high >= NOTED else Level.NOTE
        return self.found(
            Level.SUSPECT if share.high < HALF else level,
            f"{text} {share.value:.2f} [{share.low:.2f}, {share.high:.2f}].",
            measured=share,
            expected=f"near 1, above {NOTED}",
            severity=HALF / max(share.value, 1e-3),
        )


def _effective(trace: Trace, step: int) -> float:
    """(sum of weights)² / (n · sum of squares) of one step's sequences."""
    tokens = trace.tokens([step])
    log_ratio = np.where(tokens.trained, tokens.old - tokens.sampler, 0.0)
    total = np.bincount(tokens.row, np.nan_to_num(log_ratio), minlength=len(tokens.rollout_rows))
    weight = np.exp(np.minimum(total, np.log(CAP) + 1))
    weight = np.where(weight > CAP, 0.0, weight)
    square = float(np.sum(weight**2))
    return float(weight.sum() ** 2 / (len(weight) * square)) if square else 0.0
