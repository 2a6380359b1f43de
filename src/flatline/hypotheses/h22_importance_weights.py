"""The correction for the sampler's differences takes most of the gradient away.

## What goes wrong
Trainers that sample with vLLM weigh each sequence by the ratio of the trainer's probability to the
sampler's. The log-ratios of all its tokens add up: 0.03 nat of noise a token is a factor of 2.6
either way after 1000 tokens. Sequences above the cap are left out, the others count less, and long
ones least of all.

## Sign
TRL's logged mean weight (`sampling/importance_sampling_ratio/mean`). A mean that is certainly below
one half is suspected; below 0.8 it is noted. Trainers without such a correction, or with
`vllm_importance_sampling_correction` off, cannot have it: how far sampler and trainer differ is
H20's. Healthy: 26 runs of the lab have no correction; the thresholds are by reason and a published
run (mean 0.46).

## Probe
None: one batch of a trainer without vLLM has no weights.

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

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.groups import mean_of
from flatline.stats import Estimate
from flatline.trace import Trace

METRIC = "sampling/importance_sampling_ratio/mean"
"""What TRL calls the mean weight of a step."""
CORRECTION = "vllm_importance_sampling_correction"
"""The setting that turns it on."""
HALF, NOTED = 0.5, 0.8
"""Mean weight that is too small, and one that is worth a note."""
FEWEST = 3
"""Steps that a mean is taken over."""


class ImportanceWeights(Hypothesis):
    id = "H22"
    name = "importance-weights"
    headline = "The importance weights cancel most of your gradient."
    explains = ("H24",)
    meaning = "Most sequences hardly count, and long ones least of all."
    fix = "Set {vllm_importance_sampling_mode} to `token_truncate`: token by token, and capped."
    mechanism = "Sequences are weighted down or left out; in the other arm all count."

    def sign(self, trace: Trace) -> Finding:
        """How much of the sequences is left after the correction?"""
        if METRIC in trace.metric_names:
            return self._judge(mean_of(trace.metric(METRIC)))
        engine = trace.settings.get("engine")
        if engine is not None and not str(engine).startswith("vllm"):
            return self.not_applicable(
                f"the engine {engine!r} has no such correction.", excluded_by="engine"
            )
        if trace.settings.get(CORRECTION) is False:
            return self.not_applicable(f"{CORRECTION} is off.", excluded_by=CORRECTION)
        # Where it is on, TRL logs it. Weights computed here might be ones that nobody applies.
        raise NotRecorded(f"steps.metrics[{METRIC!r}]")

    def _judge(self, share: Estimate) -> Finding:
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more steps with weights are needed")
        level = Level.OK if share.high >= NOTED else Level.NOTE
        return self.found(
            Level.SUSPECT if share.high < HALF else level,
            f"The mean weight of a sequence is {share.value:.2f} [{share.low:.2f}, "
            f"{share.high:.2f}].",
            measured=share,
            expected=f"near 1, above {NOTED}",
            severity=HALF / max(share.value, 1e-3),
        )
