"""The sampler keeps cached keys and values of prompts after its weights have changed.

## What goes wrong
A prefix cache is found by tokens, not by weights. After an update the new policy goes on from what
the old one read. GRPO plays each prompt many times and all prompts share a system text, so nearly
everything is cached. The mismatch grows within a job and is gone after a restart.

## Sign
Where prompts are visited again: their rollouts differ from the sampler's by certainly 0.02 nat more
than those of prompts visited for the first time in the same steps: suspected. In float32 without
LoRA, where nothing is merged: sampler and trainer agree before the first update and part with it,
although rollouts name the newest weights: suspected. Healthy: 0 of 26 runs alarm (interval 0 to
13 %), but none of them visits a prompt again in a recorded step, so the first part is by reason.

## Probe
One real optimizer step, and some prompts of the batch played again: the sampler's log-probs must
follow to within 2 % of what the step changed (half of it in bf16). With LoRA a merge that rounds
looks the same from outside, so it is only noted.

## Experiment
A run with the planted fault against the same without it, matched seeds. On vLLM:
`enable_prefix_caching=False` against true.

## Fix
Wait until no request runs, update, call `reset_prefix_cache` and look at what it returns (it
refuses while blocks are in use), then go on; or salt the cache with the version of the weights.

## Not to be confused with
H06 lora-weight-sync: the weights themselves are old. H17 stale-sampler: they are old on purpose.
H18 merge-rounding: they lack digits.

## References
vLLM issues 9744, 12284 and 42125; NeMo-RL pull request 4018 (17 steps without a reset); prime-rl
issue 1650. flatline's own sampler keeps no cache from one delivery to the next.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.arms import fault_taken_out
from flatline.hypotheses.base import Arms, Finding, Hypothesis, Level
from flatline.hypotheses.following import APART, NEARLY, Following, followed, followed_one_step
from flatline.hypotheses.groups import prompts_of
from flatline.hypotheses.logprobs import never_left_the_start, recorded, some_steps
from flatline.stats import Estimate, difference_of_means
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

MORE = 0.02
"""Nats by which prompts visited again differ more. Kernels alone give 0.005 to 0.025 in both."""
FEWEST = 4
"""Groups of each kind that are compared."""
LOOKED_AT = 6
"""Recorded steps that are compared."""


class StaleCache(Hypothesis):
    id = "H19"
    name = "stale-cache"
    headline = "Your sampler reuses a cache from before the weights changed."
    explains = ("H06", "H08", "H20", "H22")
    meaning = "Rollouts come from a mixture of two policies, neither of which is trained."
    fix = "Reset the prefix cache after every update and check that it was reset."
    mechanism = "The sampler goes on from what older weights read; in the other arm it does not."

    def sign(self, trace: Trace) -> Finding:
        """Do prompts that come again differ more, or does all differ after the first update?"""
        again = _visited_again(trace)
        if again is not None and again.low > MORE:
            return self.found(
                Level.SUSPECT,
                f"Rollouts of prompts that were sampled before differ from the sampler by "
                f"{again.value:.2g} [{again.low:.2g}, {again.high:.2g}] nat more than those of new "
                "prompts in the same steps.",
                measured=again,
                expected="no more than new ones",
                severity=again.value / MORE,
            )
        if never_left_the_start(trace) is not None:
            return self.too_little("the sampler still has the weights of the start; see H06")
        return self._judge(followed(trace), APART, merged=bool(trace.settings.get("lora")))

    def probe(self, subject: "Subject") -> Finding:
        """Does the sampler follow one real step on prompts that it has seen?"""
        merged = bool(subject.settings.get("lora"))
        return self._judge(followed_one_step(subject), NEARLY, merged=merged)

    def experiment(self, config: RunConfig) -> Arms | None:
        """Without the fault, where one is planted: flatline's own sampler keeps no cache."""
        return fault_taken_out(self, config)

    def _judge(self, found: Following | str, limit: float, *, merged: bool) -> Finding:
        if isinstance(found, str):
            return self.too_little(f"{found}; prompts that are visited again would show it too")
        level = Level.NOTE if merged else Level.SUSPECT
        also = " H18 merge-rounding looks the same." if merged and found.nearly else ""
        return self.found(
            level if found.nearly else Level.OK,
            found.text + also,
            measured=found.value,
            expected=f"below {limit:g}",
            severity=found.value / limit,
        )


def _visited_again(trace: Trace) -> Estimate | None:
    """Mean |gap| of groups whose prompt came before, less that of others, after the first step."""
    steps = [step for step in some_steps(trace, LOOKED_AT) if step > 1]
    if not steps:
        return None
    groups, prompts = trace.groups(), prompts_of(trace)
    first = dict(zip(prompts[::-1], groups.step[::-1], strict=True))
    came_before = np.array([first[prompt] for prompt in prompts]) < groups.step
    gaps = recorded(trace, steps)
    unit, index = np.unique(gaps.prompt, return_inverse=True)
    means = np.bincount(index, np.abs(gaps.gap)) / np.maximum(np.bincount(index), 1)
    again = came_before[unit]
    if min(again.sum(), (~again).sum()) < FEWEST:
        return None
    return difference_of_means(means[~again], means[again])
