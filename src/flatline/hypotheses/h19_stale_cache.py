"""The sampler keeps cached keys and values of prompts after its weights have changed.

## What goes wrong
A prefix cache is found by tokens, not by weights. After an update the new policy goes on from what
the old one read. GRPO samples each prompt many times and all prompts share a system text, so nearly
everything is cached. The mismatch grows within a job and is gone after a restart.

## Sign
Where prompts are visited again: their rollouts differ from the sampler's by certainly 0.02 nat more
than those of prompts visited for the first time in the same steps: suspected. In float32 without
LoRA, where nothing is merged: sampler and trainer agree before the first update and diverge with
it, although rollouts name the newest weights: suspected. A cache holds what was read before, in
whole blocks: if prompts of which less than a block was read before diverge as well, it is not the
cause, and H06 decides; so it does where the sampler still has the weights of the start. In a
watched loop with a recurrent policy: every sequence of four steps in a row is sampled from a hidden
state that another left, and trained from none (suspected). Healthy: 0 of 26 runs alarm (interval 0
to 13 %), but none of them visits a prompt again in a recorded step, so the first part is set by
reasoning.

## Probe
One real optimizer step, and some prompts of the batch sampled again: the sampler's log-probs must
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

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.following import APART, NEARLY, Following, followed, followed_one_step
from flatline.hypotheses.groups import prompts_of
from flatline.hypotheses.logprobs import (
    never_left_the_start,
    prompts_of_rows,
    recorded,
    some_steps,
)
from flatline.stats import Estimate, difference_of_means, mean_of_units
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

MORE = 0.02
"""Nats by which prompts visited again differ more. Kernels alone give 0.005 to 0.025 in both."""
FEWEST = 4
"""Groups of each kind that are compared."""
BLOCK = 16
"""Tokens whose keys are kept together: vLLM's smallest block. By reason."""
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
        carried = trace.run.get("state_is_carried") or {"steps": 0}
        if carried["steps"] >= FEWEST:
            return self._carried(carried["steps"])
        if never_left_the_start(trace) is not None:
            return self.too_little("the sampler still has the weights of the start; see H06")
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
        unread = _unread(trace)
        if unread is not None and unread.low > APART:
            return self.too_little(
                f"rollouts of {unread.n} prompts whose first {BLOCK} tokens were never read before "
                f"differ by {unread.value:.2g} nat as well, and no cache has those; see H06"
            )
        return self._judge(followed(trace), APART, merged=bool(trace.settings.get("lora")))

    def _carried(self, steps: int) -> Finding:
        """A recurrent policy, whose cache is its hidden state."""
        return self.found(
            Level.SUSPECT,
            f"In each of the last {steps} steps every sequence was sampled from a hidden state "
            "that an earlier pass had left, and trained from an empty one.",
            measured=float(steps),
            expected="an empty state at the start of a sequence",
            severity=float(steps),
            fix="Clear the hidden state of the sampler before each batch of prompts.",
            headline="Your sampler begins with the hidden state that the rollouts before it left.",
        )

    def probe(self, subject: "Subject") -> Finding:
        """Does the sampler follow one real step on prompts that it has seen?"""
        merged = bool(subject.settings.get("lora"))
        return self._judge(followed_one_step(subject), NEARLY, merged=merged)

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
            looked_at=found.steps,
        )


def _visited_again(trace: Trace) -> Estimate | None:
    """Mean |gap| of groups whose prompt came before, less that of others, after the first step."""
    steps = [step for step in some_steps(trace, LOOKED_AT) if step > 1]
    if not steps:
        return None
    unit, means = _of_groups(trace, steps)
    again = _came_before(trace)[unit]
    if min(again.sum(), (~again).sum()) < FEWEST:
        return None
    return difference_of_means(means[~again], means[again])


def _unread(trace: Trace) -> Estimate | None:
    """Mean |gap| of groups of whose prompts no earlier step has read a block, in the first steps
    after an update; None where there are too few, or no prompt is known."""
    steps = trace.token_steps[:LOOKED_AT].astype(int).tolist()
    read: set[bytes] = set()
    unread: list[int] = []
    again = _came_before(trace)
    for step in steps:
        begun = {group: ids[:BLOCK].tobytes() for group, ids in _prompts(trace, step).items()}
        unread += [one for one, ids in begun.items() if not again[one] and ids not in read]
        read |= set(begun.values())
    unit, means = _of_groups(trace, [step for step in steps if step > 1])
    gaps = means[np.isin(unit, unread)]
    return mean_of_units(gaps.tolist()) if len(gaps) >= FEWEST else None


def _came_before(trace: Trace) -> np.ndarray:
    """Whether the prompt of each group was sampled for at an earlier step."""
    groups, prompts = trace.groups(), prompts_of(trace)
    first = dict(zip(prompts[::-1], groups.step[::-1], strict=True))
    return np.array([first[prompt] for prompt in prompts]) < groups.step


def _of_groups(trace: Trace, steps: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Groups of some steps, and the mean |gap| of each."""
    gaps = recorded(trace, steps)
    unit, index = np.unique(gaps.prompt, return_inverse=True)
    return unit, np.bincount(index, np.abs(gaps.gap)) / np.maximum(np.bincount(index), 1)


def _prompts(trace: Trace, step: int) -> dict[int, np.ndarray]:
    """Ids of each group's prompt at a step; nothing where they were not recorded."""
    tokens = trace.tokens([step])
    groups = trace.groups().index[tokens.rollout_rows].tolist()
    return dict(zip(groups, prompts_of_rows(tokens) or [], strict=False))
