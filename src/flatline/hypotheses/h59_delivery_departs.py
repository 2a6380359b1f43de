"""After the weights move, the sampler samples with other weights.

## What goes wrong
A copy for sampling is scaled, averaged, merged in part or refreshed too seldom: completions come
from a policy that is not the one being trained.

## Sign
None: it needs the live trainer.

## Probe
The weights are moved visibly and a few tokens are sampled with TRL's own `generate`: the sampler's
log-probs must be the moved policy's, up to rounding that grows with the move.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Sample with the model that is trained, or copy every weight after every step.

## Not to be confused with
H06 lora-weight-sync, H17 stale-sampler, H18 merge-rounding, H19 stale-cache: known causes of this.
H50 completions-depart: wrong before any weight moves.

## References
TRL pull requests 2873 and 4571; `docs/specification.md`, delivery.
"""

from flatline.hypotheses.departure import Departure


class DeliveryDeparts(Departure):
    id = "H59"
    name = "delivery-departs"
    headline = "Your sampler does not use the weights that you train."
    stage = "delivery"
    named_by = ("H06", "H17", "H18", "H19", "H20", "H21")
    meaning = "What is rewarded was not written by the policy that learns from it."
    fix = "Send all trained weights to the sampler after every step."
