"""How much a rollout counts depends on its length, so the policy learns a length.

## What goes wrong
A mean over the tokens of a sequence gives short right answers and long wrong ones more weight per
token; a sum over the batch gives long ones more. Normalised twice, or not at all, length owns the
update: the policy grows longer or shorter and is no more right.

## Sign
Two looks. A fault: the advantages that were trained on differ from those of the recorded rewards by
a factor that follows the length of the rollout (correlation of the logarithms certainly beyond
0.5). Suspected: the model's tokens per rollout certainly double or halve over the run while the
reward does not rise, and inside groups the advantage certainly follows the length the same way.
Otherwise it is noted: problems that get harder make rollouts longer, too. The text says how the
advantage follows the length inside groups: where long answers are right, it does (0.6 in the lab
before training), and that alone is no defect.

## Probe
The first look, on one batch.

## Experiment
A planted fault against none, or the loss in use against another way to average it (`loss_type`
`dapo` against `grpo`); matched seeds, outcome is the held-out reward.

## Fix
`loss_type` `dr_grpo` or `dapo`; divide by length once; count only the tokens that the model wrote;
a soft penalty for overlong rollouts instead of none.

## Not to be confused with
H05 reward-signal: length is paid for by the reward itself. H14: rollouts that a limit cuts off are
punished. H43 behaviour-collapse: rollouts get short because tools are no longer used.

## References
Dr. GRPO (2503.20783); DAPO (2503.14476). TRL's `grpo`, `bnpo`, `dr_grpo` and `dapo` losses.
Thresholds: in 26 healthy lab runs the factor is 1 to rounding and lengths change by -0 to +29 %; 0
of 26 alarm (interval 0 to 13 %).
"""

import math

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.drift import drift_of
from flatline.hypotheses.groups import correlation_estimate, reward_rises, within_correlation
from flatline.hypotheses.replay import advantages, trained
from flatline.hypotheses.weights import kl_in_reward
from flatline.stats import UNKNOWN, Estimate
from flatline.trace import Trace

FOLLOWS = 0.5
"""Correlation of length with the factor on the advantages. Healthy: the factor is constant."""
FACTOR = 0.05
"""Spread of the factor's logarithm below which there is none."""
TIMES = 2.0
"""Growth of the length, or its inverse. Healthy: at most 1.3."""
TELLING = 0.05
"""Advantages below this are too small to tell a factor from rounding."""
FEWEST = 16
"""Rollouts with such an advantage."""


RLOO_FIX = (
    "Pay for what is right and not for its length; check what the reward gives to long answers."
)


class LengthBias(Hypothesis):
    id = "H35"
    name = "length-bias"
    headline = "Length, not quality, decides how much a completion counts."
    meaning = "Length, not what was done, decides how much a rollout counts."
    fix = (
        "Set {loss_type} to one that weighs all tokens equally (`dr_grpo`, `dapo`), check where "
        "advantages are divided by length."
    )
    mechanism = (
        "The weight of a rollout, or the length of all, follows length; in the other arm it does "
        "not."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Does length decide what counts?"""
        length = _length(trace)
        weighted = _factor(trace, length)
        if weighted.low > FOLLOWS or weighted.high < -FOLLOWS:
            return self.found(
                Level.FAULT,
                f"Advantages are weighted by length: their factor and the length of the rollout "
                f"have a correlation of {weighted}.",
                measured=weighted,
                expected="no factor",
                severity=abs(weighted.value) / FOLLOWS,
            )
        return self._drifted(trace, length) or self._follows(trace, length)

    def suspected(self, config: RunConfig) -> Setting | None:
        """One way to average the token losses against another."""
        other = "dapo" if config.loss_type == "grpo" else "grpo"
        return Setting(
            "loss_type",
            other,
            control=f"loss `{config.loss_type}`",
            treated=f"loss `{other}`",
        )

    def _drifted(self, trace: Trace, length: np.ndarray) -> Finding | None:
        """Did all rollouts become much longer or shorter, and the reward no better?"""
        drift = drift_of(trace, np.log(np.maximum(length, 1.0)))
        if drift is None or max(drift.change.low, -drift.change.high) <= math.log(TIMES):
            return None
        if reward_rises(trace):
            return None
        times = math.exp(drift.change.value)
        pull = within_correlation(trained(trace), length, trace.groups().index)
        pulled = pull.low > 0 if times > 1 else pull.high < 0
        told = "follows" if pulled else "does not certainly follow"
        return self.found(
            Level.SUSPECT if pulled else Level.NOTE,
            f"The model's tokens per rollout went to {times:.2g} times what they were, and the "
            f"reward did not rise. Inside groups the advantage {told} the length that way.",
            measured=times,
            expected=f"between {1 / TIMES:g} and {TIMES:g}",
            fix=_fix(trace, self.fix),
            # Lengths change with whatever goes wrong: another suspect is the likelier cause.
            severity=0.5,
        )

    def _follows(self, trace: Trace, length: np.ndarray) -> Finding:
        found = within_correlation(trained(trace), length, trace.groups().index)
        if not math.isfinite(found.value):
            return self.too_little("advantages and lengths never differ inside the same group")
        if kl_in_reward(trace.settings):
            return self.too_little("RLOO takes the KL off the reward: what is due is not known")
        telling = int(_telling(trace, length).sum())
        if telling < FEWEST:
            return self.too_little(f"{FEWEST - telling} more rollouts with an advantage are needed")
        text = f"Inside groups the advantage follows the length with a correlation of {found}."
        return self.found(Level.OK, text, measured=found)


def _fix(trace: Trace, usual: str) -> str:
    """RLOO weighs all tokens alike, and has no other loss."""
    return RLOO_FIX if trace.settings.get("algorithm") == "rloo" else usual


def _length(trace: Trace) -> np.ndarray:
    """Tokens that the model wrote, else those of the whole completion."""
    for name in ("model_tokens", "completion_tokens"):
        if name in trace.rollouts:
            return trace.rollouts[name]
    raise NotRecorded("rollouts.model_tokens")


def _telling(trace: Trace, length: np.ndarray) -> np.ndarray:
    """Rollouts whose advantage is large enough to see a factor."""
    due = advantages(trace, trace.rollouts["reward"])
    return np.asarray((np.abs(due) > TELLING) & (np.abs(trained(trace)) > 0) & (length > 0))


def _factor(trace: Trace, length: np.ndarray) -> Estimate:
    """Correlation of length with what advantages were multiplied by; unknown where that is 1."""
    done, due = trained(trace), advantages(trace, trace.rollouts["reward"])
    told = _telling(trace, length)
    if told.sum() < FEWEST or kl_in_reward(trace.settings):
        return UNKNOWN
    factor, log_length = np.log(np.abs(done[told] / due[told])), np.log(length[told])
    if factor.std() < FACTOR or log_length.std() == 0:
        return UNKNOWN
    groups = len(np.unique(trace.groups().index[told]))
    return correlation_estimate(float(np.corrcoef(factor, log_length)[0, 1]), groups)
