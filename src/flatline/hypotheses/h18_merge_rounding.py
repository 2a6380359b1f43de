"""The adapter is merged into low-precision weights: the sampler gets only part of each update.

## What goes wrong
The trainer computes W + BA. For the sampler, BA is added to W in bf16, where a change smaller than
half of W's last digit is lost (6e-5 of a weight of 0.02). At small rates most of an update never
arrives, and unmerging leaves a residue in the trainer's own base.

## Sign
LoRA in float32: sampler and trainer agree to rounding before the first update, and from the first
update on differ by more than 1e-3 nat although rollouts name the newest weights: suspected. In
bf16 the two differ anyway, and with dropout in the adapter the trainer differs from itself: there a
trace cannot show it. Healthy: 7e-7 at most (0 of 26 runs, interval 0 to 13 %).

## Probe
One real optimizer step, and some prompts sampled as the next step would: the sampler's log-probs
must follow to within 2 % of what the step changed (half of it in bf16). Healthy in the lab: 4e-6.
A sampler that did not move at all, or ten times as far as the step, is H06's.

## Experiment
A run with the planted fault against the same without it; or a copy of the weights that samples
against the trainer's own (`sampler_weights`); matched seeds.

## Fix
Send the adapter and let the sampler apply it; or merge in float32, from a base that is never
unmerged. A larger learning rate makes updates survive.

## Not to be confused with
H06 lora-weight-sync: nothing arrives, or more with each delivery. H19 stale-cache: without LoRA
nothing is merged; with LoRA the two look alike from outside, and an engine with a prefix cache
should be tried without it first. H25 rounded-updates: the trainer's own weights lose the update.
H20 numeric-mismatch: the two differ before any update.

## References
TRL issues 3466, 5188 and 6688. By simulation (weights of 0.02, rank 16): 1.3 % of the update
survives at rate times steps = 1e-5, 13 % at 1e-4, 85 % at 1e-3. flatline's own sampler therefore
takes a merged copy in float32 only.
"""

from typing import TYPE_CHECKING

from flatline.config import RunConfig
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.following import APART, NEARLY, Following, followed, followed_one_step
from flatline.hypotheses.logs import setting
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject


class MergeRounding(Hypothesis):
    id = "H18"
    name = "merge-rounding"
    headline = "Your sampler loses part of every update when the adapter is merged."
    explains = ("H06", "H08", "H20", "H22")
    meaning = "Rollouts come from a policy that has missed a part of every update."
    fix = "Sync the adapter instead of merged weights, or merge in float32."
    mechanism = "The sampler follows updates in part; in the other arm exactly."

    def sign(self, trace: Trace) -> Finding:
        """Do sampler and trainer part with the first update?"""
        if not setting(trace, "lora"):
            return self.not_applicable("there is no adapter to merge.", excluded_by="lora")
        if setting(trace, "lora").get("dropout"):
            # It shows with the first update too: before that, the adapter adds nothing to drop.
            return self.too_little("the adapter's dropout moves the trainer's log-probs as well")
        return self._judge(followed(trace), APART)

    def probe(self, subject: "Subject") -> Finding:
        """Does the sampler follow one real step?"""
        if not subject.settings.get("lora"):
            return self.not_applicable("there is no adapter to merge.", excluded_by="lora")
        return self._judge(followed_one_step(subject), NEARLY)

    def suspected(self, config: RunConfig) -> Setting | None:
        """A merged copy against the trainer's own weights."""
        if not config.peft or config.sampler_weights != "copy":
            return None
        return Setting(
            "sampler_weights",
            "live",
            control="a merged copy samples",
            treated="the trainer's own weights sample",
        )

    def _judge(self, found: Following | str, limit: float) -> Finding:
        if isinstance(found, str):
            return self.too_little(found)
        return self.found(
            Level.SUSPECT if found.nearly else Level.OK,
            found.text,
            measured=found.value,
            expected=f"below {limit:g}",
            severity=found.value / limit,
            looked_at=found.steps,
        )
