"""Rows have other weights in the loss than asked for, or the loss has the wrong sign or size.

## What goes wrong
The loss is divided by the longest length instead of each completion's own, by the tokens of another
batch, or twice by the number of passes; or it is returned as an objective to be maximised.

## Sign
None: it needs the live trainer.

## Probe
The derivative of the loss by each token's log-prob, and the loss itself, against the specified
ones. Rows are multiples of what they should be; the multiple shows what they were divided by. If
every token has its weight and your own class adds something to the loss, that is a note.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Compare the last lines of the loss with the formula of `loss_type`.

## Not to be confused with
H28 loss-normalisation: the sum over passes. H35 length-bias: the loss is as asked for. H55
ratio-departs: tokens of one row are out of proportion.

## References
GRPO; Dr. GRPO (Liu et al., 2025); DAPO (Yu et al., 2025); TRL issues 5619, 6369.
"""

from flatline.hypotheses.departure import Departure


class LossDeparts(Departure):
    id = "H56"
    name = "loss-departs"
    headline = "Your loss has the wrong sign, size or weights."
    stage = "loss"
    named_by = ("H22", "H28", "H30", "H35", "H36")
    meaning = "Completions count for more or less than asked, or for the opposite."
    fix = "Fix the denominator or the sign; the finding shows a token of both."
