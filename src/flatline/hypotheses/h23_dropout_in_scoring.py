"""Dropout is on while tokens are scored: the same tokens get another log-prob in every pass.

## What goes wrong
Each pass is another random part of the network. Old, new and reference log-probs then differ by
noise: ratios are clipped at random, the KL starts above 0, and the trained policy is never quite
the one that sampled.

## Sign
Rollouts of one prompt that begin with the same tokens must have the same log-probs there. A spread
above 0.1 nat on average over prompts is a fault; a smaller one that float32 does not explain
(above 1e-3) is noted, as ordinary LoRA dropout in the trained pass gives. The KL of step 1 shows
it too, where beta is above 0.

## Probe
Score one batch twice in each kind of pass, with the adapters as they are and moved a little
(dropout in front of a B that is still zero has no effect). Two identical passes must give identical
numbers.

## Experiment
`lora_dropout` in use against 0, or a planted fault against none; matched seeds, all else equal.

## Fix
`GRPOConfig(disable_dropout=True)` and `LoraConfig(lora_dropout=0.0)`; score in evaluation mode.

## Not to be confused with
H15 padding: the log-prob depends on the batch, but two identical passes agree. H20: bf16 kernels
differ by less than 0.1 nat. H03 kl-divergence: a KL above 0 at step 1 without noise.

## References
TRL issues 3234 and 3500; `disable_dropout` is off by default. The N implementation details of RLHF
(arXiv 2403.17031). The seeds' script set `lora_config.dropout`, a field that does not exist.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.arms import arms, fault_taken_out
from flatline.hypotheses.base import Arms, Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import prefix_spread, some_steps
from flatline.trace import Trace
from flatline.trace.settings import is_half

if TYPE_CHECKING:
    from flatline.subject import Subject

NOISY = 0.1
"""Mean spread in nats of equal beginnings. Healthy: 1e-6, in bf16 below 0.05; see
docs/calibration.md."""
ROUNDED = 1e-3
"""Spread that float32 arithmetic in batches of other shapes explains (healthy: 2e-4 at most)."""
SAME = 1e-4
"""Largest difference of two identical passes. An invariant: healthy ones agree to the last bit."""
FEWEST = 2
"""Prompts with rollouts that begin alike."""


class DropoutInScoring(Hypothesis):
    id = "H23"
    name = "dropout-in-scoring"
    explains = ("H03", "H06", "H10", "H11", "H20", "H22", "H24", "H29")
    meaning = "Ratios and KL are noise, so updates are clipped and weighted at random."
    fix = "Set `disable_dropout=True` in GRPOConfig and `lora_dropout=0.0` in LoraConfig."
    mechanism = "Equal beginnings get different log-probs; in the other arm the same."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do equal beginnings get equal log-probs?"""
        if not len(trace.token_steps):
            raise NotRecorded("tokens.trainer")
        spread = prefix_spread(trace, some_steps(trace))
        if spread.n < FEWEST:
            return self.too_little(
                f"{spread.n} prompts have rollouts that begin with the same tokens; "
                f"{FEWEST - spread.n} more would do"
            )
        text = (
            f"Rollouts of a prompt that begin alike differ there by {spread.value:.2g} "
            f"[{spread.low:.2g}, {spread.high:.2g}] nat in the trainer's log-probs."
        )
        if spread.low > NOISY:
            level = Level.FAULT
        elif spread.low > ROUNDED and not is_half(trace.settings):
            level = Level.NOTE
        else:
            level = Level.OK
        return self.found(
            level,
            text,
            measured=spread,
            expected="0",
            severity=spread.value / NOISY,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Do two identical passes agree?"""
        twice = subject.scored_twice()
        scoring = _largest(twice.scoring, twice.moved_scoring)
        trained = _largest(twice.trained, twice.moved_trained)
        if np.isnan(scoring) and np.isnan(trained):
            return self.too_little("no trained token in the batch; another batch would do")
        told = (
            f"Two identical passes differ by up to {scoring:.2g} nat without gradients and "
            f"{trained:.2g} with (dropout p = {twice.dropout:g})."
        )
        worst = _largest(scoring, trained)
        if worst <= SAME:
            return self.found(Level.OK, told, measured=worst, expected="0")
        # In the trained pass alone it is ordinary regularisation, if an unwise one here.
        noisy = scoring > SAME or not twice.dropout
        return self.found(
            Level.FAULT if noisy else Level.NOTE,
            told,
            measured=worst,
            expected="0",
            severity=worst / SAME,
        )

    def experiment(self, config: RunConfig) -> Arms | None:
        """Dropout in front of the adapters against none."""
        planted = fault_taken_out(self, config)
        if planted is not None or not (config.peft and config.lora_dropout):
            return planted
        return arms(
            self,
            config,
            "lora_dropout",
            0.0,
            control=f"LoRA dropout {config.lora_dropout:g}",
            treated="LoRA dropout 0",
        )


def _largest(*values: float) -> float:
    known = [value for value in values if not np.isnan(value)]
    return max(known, default=float("nan"))
