"""The optimizer gets a gradient that is not that of the specified step.

## What goes wrong
Log-probs are detached, or gradients are cleared between passes, or a callback negates, masks or
scales them: the loss is right to the last digit, and the weights go elsewhere.

## Sign
None: it needs the live trainer.

## Probe
The specified gradient of the whole step, row by row without padding, against what the passes left
and against what the optimizer gets: cosine and ratio of lengths, tensor by tensor, without a second
copy on the device.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Look for `detach`, `zero_grad`, `no_grad` and for callbacks between the backward pass and the
optimizer.

## Not to be confused with
H26 optimizer-not-stepping: no gradient at all. H27 gradient-clipping: clipped as asked for. An
earlier stage that departs changes the gradient too; it is then named first.

## References
`docs/specification.md`, gradient and tolerances.
"""

from flatline.hypotheses.departure import Departure


class GradientDeparts(Departure):
    id = "H57"
    name = "gradient-departs"
    headline = "Your optimizer gets a different gradient than your loss implies."
    stage = "gradient"
    named_by = ("H25", "H26", "H27")
    meaning = "The weights are moved in another direction than the loss says."
    fix = "Find what changes the gradient between the loss and the optimizer."
