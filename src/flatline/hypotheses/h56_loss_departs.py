"""Rows weigh otherwise in the loss than asked for, or the loss has another sign or size.

## What goes wrong
Divided by the longest length where each completion's own was asked, by the tokens of another batch,
twice by the number of passes, or returned as an objective to be maximised.

## Sign
None: it takes the trainer itself.

## Probe
The derivative of the loss by each token's log-prob, and the loss itself, against the specified
ones. Rows are multiples of what they should be; the multiple says by what they were divided. Where
every token has its weight and a class of your own adds something to the loss, that is noted.

## Experiment
None: what departs is code and not a setting. Mend it, and compare matched seeds before and after.

## Fix
Compare the last lines of the loss with the formula of `loss_type`.

## Not to be confused with
H28 loss-normalisation: the sum over passes. H35 length-bias: as asked for. H55 ratio-departs:
tokens of one row are out of proportion.

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
