"""The trainer's log-probs are not those that the policy gives these tokens.

## What goes wrong
A temperature that is left out, masks or padding that the model sees, old log-probs of another
batch, a reference that moves with the policy: every ratio and every KL of the step then measures
something else.

## Sign
Along a recorded run: on the first pass over a batch the old log-probs are the policy's own, up to
rounding. A loss that gets none uses its own, which is wrong if rollouts are trained after an update
(`num_iterations`, or a generation that is dealt out to several steps). Not testable with dropout,
or if old ones are given and a generation is first trained after an update.

In a watched loop: nine in ten positions of a loss push the token that the model was given there and
not the one that comes next, at two steps or more, of a model that was seen to sample. Logits that
are not shifted: a fault.

## Probe
The log-probs in the passes, the old ones and those of the reference against each row scored alone,
without padding or dropout. The weights are first moved a little, so that the three differ. A
reference that is neither the policy nor the policy's start may be intended, and is left alone. Each
plain LoRA layer is tested by itself: it must add alpha / r B A x.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Score one row alone, `log_softmax(logits / temperature)`, and compare; the finding names a token.

## Not to be confused with
H15 padding, H09 loss-mask-as-attention, H21 sampling-parameters, H23 dropout-in-scoring, H31
kl-anchor: known causes of this. H20 numeric-mismatch: the difference has the size of rounding.

## References
TRL 0.14 to 0.15 without temperature (pull request 3029), 0.18 and 0.19 without old log-probs where
generations and steps do not divide (3725); `docs/specification.md`, log-probs.
"""

from flatline.hypotheses.departure import DepartureAlong


class LogprobsDepart(DepartureAlong):
    id = "H54"
    name = "logprobs-depart"
    headline = "Your trainer computes wrong log-probs for your model's tokens."
    stage = "log-probs"
    named_by = (
        "H03",
        "H06",
        "H07",
        "H09",
        "H10",
        "H11",
        "H12",
        "H15",
        "H16",
        "H21",
        "H23",
        "H31",
        "H61",
        "H64",
    )
    meaning = "Every ratio, KL and gradient of the step is computed from wrong log-probs."
    fix = "Score the token of the finding alone and find what the trainer does to it."
