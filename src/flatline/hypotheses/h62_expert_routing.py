"""Sampler and trainer of a mixture of experts send the same tokens to different experts.

## What goes wrong
A router picks the largest of numbers that often lie close together. Other kernels, precision or
batches flip some of these choices, and a token then passes through other weights: the trained
policy is not the one that sampled, although weights and ids are equal. The more layers, the more
tokens meet at least one such choice.

## Sign
None: which experts were chosen is not recorded. The gap that results shows as H20 or H63.

## Probe
Rollouts whose sampler reports its experts (`routed_experts`: one row a token, then layers, then the
experts chosen) are scored one at a time, with hooks on the routers of the trained model. Suspected
if certainly more than 1 % of all choices differ, and tokens after such a choice are off by more
than H20 allows (0.005 nat in float32, 0.05 in 16 bits) and by twice as much as others; fewer or
harmless ones are noted. Not testable without the sampler's experts; ruled out for a model without
experts. Healthy in the lab: no choice differs.

## Experiment
A run with the planted fault against the same without it, matched seeds.

## Fix
Replay the sampler's experts in the trainer (R3: Megatron's and verl's router replay, NeMo-RL's
`router_replay`), and keep routers in float32 on both sides. A token-wise correction makes it
milder.

## Not to be confused with
H20 numeric-mismatch: all tokens are off by a little, whatever their experts. H61
packed-neighbours: neighbours matter, at the same experts or not. H63 growing-mismatch: the gap
grows with the steps.

## References
"Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers" (R3, arXiv
2510.11370: one choice in ten differs, and 94 % of tokens in some layer); Megatron-LM issue 4168;
NeMo-RL pull request 2590 (`enable_return_routed_experts` of vLLM); AReaL pull request 1207.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.h20_numeric_mismatch import APART, APART_BF16
from flatline.stats import mean_of_units
from flatline.trace.settings import is_half

if TYPE_CHECKING:
    from flatline.live.records import Routing
    from flatline.live.subject import Subject

OTHERS = 0.01
"""Share of the choices that differ. Healthy in float32: 0."""
MORE = 2.0
"""Times the gap of tokens that were sent to the same experts."""
FEWEST = 2
"""Rollouts whose sampler reports its experts."""


class ExpertRouting(Hypothesis):
    id = "H62"
    name = "expert-routing"
    headline = "Your sampler and your trainer send tokens to different experts."
    explains = ("H20", "H22", "H24", "H29")
    meaning = "The tokens are trained in weights that did not write them."
    fix = "Replay the sampler's experts in the trainer, and keep routers in float32 on both sides."
    mechanism = "Sampler and trainer choose other experts; in the other arm the same."

    def probe(self, subject: "Subject") -> Finding:
        """Do both sides choose the same experts, and does it matter where they do not?"""
        found = subject.routing()
        if found is None:
            return self.not_applicable("the model has no experts.", excluded_by="the model")
        if np.isfinite(found.differing_R).sum() < FEWEST:
            return self.found(
                Level.UNKNOWN,
                f"Could not be tested: the model has {found.layers} layers of experts, and the "
                "sampler does not report which ones it chose.",
                needs="Let the sampler return its experts (vLLM's `enable_return_routed_experts`), "
                "and hand them on with each rollout as `routed_experts`",
            )
        return self._judge(found, APART_BF16 if is_half(subject.settings) is not False else APART)

    def _judge(self, found: "Routing", limit: float) -> Finding:
        differing = mean_of_units(found.differing_R[np.isfinite(found.differing_R)].tolist())
        behind, others = (_mean(found.gap_T[one]) for one in (found.rerouted_T, ~found.rerouted_T))
        matters = behind > limit and not behind < MORE * others
        differs = differing.low > OTHERS
        level = Level.SUSPECT if matters else Level.NOTE
        what = (
            f"; log-probs of tokens after such a choice are off by {behind:.2g} nat"
            f"{'' if np.isnan(others) else f', others by {others:.2g}'}"
            if np.isfinite(behind)
            else ""
        )
        return self.found(
            level if differs else Level.OK,
            f"{differing.value:.1%} of all choices of experts differ between sampler and trainer"
            f"{what if differs else ''}.",
            measured=differing,
            expected="0",
            severity=differing.value / OTHERS,
        )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
