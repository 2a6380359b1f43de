"""The trainer's log-probs are not the policy's of these tokens.

## What goes wrong
A temperature that is left out, masks or padding that the model sees, old log-probs of another
batch, a reference that moves with the policy: every ratio and every KL of the step is then of
something else.

## Sign
Along a recorded run: on the first pass over a batch the old log-probs are the policy's own, up to
rounding. A loss that is given none takes its own, which departs where rollouts are trained after
an update (`num_iterations`, or a generation that is dealt out to several steps). With dropout, or
where old ones are given and a generation is first trained after an update, it cannot be tested.

## Probe
The log-probs in the passes, the old ones and those of the reference against each row scored alone,
without padding or dropout, with the weights moved a little so that the three differ. A reference
that is neither where the policy began nor the policy itself may be one that was asked for, and is
left alone. Each plain LoRA layer is asked by itself: it must add alpha / r B A x.

## Experiment
None: what departs is code and not a setting. Mend it, and compare matched seeds before and after.

## Fix
Score one row alone, `log_softmax(logits / temperature)`, and compare; the finding names a token.

## Not to be confused with
H15 padding, H09 loss-mask-as-attention, H21 sampling-parameters, H23 dropout-in-scoring, H31
kl-anchor: known ways to get there. H20 numeric-mismatch: the size of rounding.

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
