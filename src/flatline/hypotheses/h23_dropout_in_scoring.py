"""Dropout is on while tokens are scored: the same tokens get a different log-prob in every pass.

## What goes wrong
Each pass is another random part of the network. Old, new and reference log-probs then differ by
noise: ratios are clipped at random, the KL starts above 0, and the trained policy is never quite
the one that sampled.

## Sign
Rollouts of one prompt that begin with the same tokens must have the same log-probs there, where
they carry loss. A spread above 0.1 nat on average over prompts is a fault; a smaller one that
float32 does not explain (above 1e-3) is noted.

Dropout in front of adapters that the run itself reports is only noted: if each batch serves one
update every ratio is 1, whatever the noise, and if it serves more, only up to a spread as wide as
the clip. With beta above 0 the KL of step 1 shows it too. If a generation is dealt out to several
updates, different weights train equal beginnings: then the old log-probs are compared, which one
set of weights gave.

## Probe
Score one batch twice in each kind of pass, with the adapters as they are and moved a little
(dropout in front of a B that is still zero has no effect). Two identical passes must give identical
numbers. Where they do not and the model has no dropout, it is a fault. Where it has, the gradient
of the batch is taken twice: what the two do not share is noise. More noise than gradient is a
fault, less is noted. In the lab, LoRA dropout of 0.1 is 8 % of the update, of 0.5 it is 46 %, of
0.9 it is 88 %; attention dropout of 0.1 is 76 % (docs/specification.md).

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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.logprobs import prefix_spread, some_steps
from flatline.hypotheses.weights import updates_once
from flatline.trace import Trace
from flatline.trace.settings import is_half, rounding

if TYPE_CHECKING:
    from flatline.live.subject import Subject

NOISY = 0.1
"""Mean spread in nats of equal beginnings. Healthy: 1e-6, in bf16 below 0.05; see
docs/hypotheses.md."""
ROUNDED = 1e-3
"""Spread that float32 arithmetic in batches of other shapes explains (healthy: 2e-4 at most)."""
SWAMPED = 0.5
"""Share of an update that is noise. Beyond it a step goes further by chance than by the rewards.
The dropout that people train with is far below: 0.08 at p = 0.1 in front of adapters."""
CLIP = 0.2
"""Clip of a run that does not tell its own."""
FEWEST = 2
"""Prompts with rollouts that begin alike."""


class DropoutInScoring(Hypothesis):
    id = "H23"
    name = "dropout-in-scoring"
    headline = "Dropout is on while your trainer scores tokens."
    explains = ("H03", "H06", "H10", "H11", "H15", "H20", "H22", "H24", "H28", "H29")
    meaning = "Ratios and KL are noise, so updates are clipped and weighted at random."
    fix = "Switch dropout off: {lora_dropout} for the adapters, {disable_dropout} for the model."
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
                f"{FEWEST - spread.n} more are needed"
            )
        text = (
            f"Rollouts of a prompt that begin alike differ there by {spread.value:.2g} "
            f"[{spread.low:.2g}, {spread.high:.2g}] nat in the trainer's log-probs."
        )
        if spread.low > _costly(trace.settings):
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
        """Do two identical passes agree, and what does it cost if they do not?"""
        twice = subject.scored_twice()
        here, moved = (twice.scoring, twice.trained), (twice.moved_scoring, twice.moved_trained)
        worst, allowed = _largest(*here, *moved), rounding(subject.settings)
        if np.isnan(worst):
            return self.too_little("no trained token in the batch; another batch is needed")
        told = f"Two identical passes differ by up to {worst:.2g} nat"
        if not _largest(*here) > allowed:
            told += " once the weights have moved"
        if worst <= allowed:
            return self.found(Level.OK, f"{told}.", measured=worst, expected="0", looked_at=2)
        if not twice.dropout:
            return self.found(
                Level.FAULT,
                f"{told}, and the model has no dropout that would explain it.",
                measured=worst,
                expected="0",
                severity=worst / allowed,
                fix="Look for what is random in a scoring pass: a layer in training mode, a hook.",
                headline="Something random changes your trainer's log-probs in every pass.",
            )
        return self._by_cost(f"{told} (dropout p = {twice.dropout:g})", subject)

    def _by_cost(self, told: str, subject: "Subject") -> Finding:
        """Dropout that the model is known to have counts by what it makes of the update."""
        noise = 1 - subject.gradient_twice()
        if np.isnan(noise):
            return self.found(Level.NOTE, f"{told}; this batch has no gradient to show its cost.")
        return self.found(
            Level.FAULT if noise > SWAMPED else Level.NOTE,
            f"{told}; {max(noise, 0):.0%} of the update is its noise.",
            measured=noise,
            expected=f"below {SWAMPED:g}",
            severity=noise / SWAMPED,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """Dropout in front of the adapters against none."""
        if not (config.peft and config.lora_dropout):
            return None
        return Setting(
            "lora_dropout",
            0.0,
            control=f"LoRA dropout {config.lora_dropout:g}",
            treated="LoRA dropout 0",
        )


def _costly(settings: Mapping[str, Any]) -> float:
    """The spread that costs. Noise of dropout that was asked for reaches the loss through the ratio
    alone, which is 1 in the only update of a batch."""
    asked_for = (settings.get("lora") or {}).get("dropout") and not settings.get("disable_dropout")
    if not asked_for:
        return NOISY
    epsilon = settings.get("epsilon")
    return np.inf if updates_once(settings) else max(NOISY, CLIP if epsilon is None else epsilon)


def _largest(*values: float) -> float:
    known = [value for value in values if not np.isnan(value)]
    return max(known, default=float("nan"))
