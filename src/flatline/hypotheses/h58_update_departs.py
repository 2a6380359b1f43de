"""A step changes the weights in another way than its optimizer and learning rate should.

## What goes wrong
Weights are put back or averaged after each step, the optimizer holds only some of them, a decay is
applied that nobody asked for, or a schedule ends long before the training: gradients are right and
nothing is learned.

## Sign
Along a recorded run:

- the rate in force at each step is that of the schedule asked for (a schedule of your own must not
  end in the first half);
- no weight changes between two steps;
- after several steps weights are further from their start than one step takes them;
- no step multiplies all weights by one number that is 1 % or more, and ten times the rate, away
  from 1, step after step.

## Probe
One step of the trainer's optimizer on the gradient it got, with the user's own callbacks around it,
against AdamW by its definition, whose running means must be kept; and the rates of the whole
schedule against the one asked for. An optimizer of your own is only tested for a step that goes up
the gradient, or that shrinks all weights by one sizeable factor.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Check `optimizer.param_groups` against the trainable weights, the callbacks at the end of a step,
and the schedule at the step of the finding.

## Not to be confused with
H24 learning-rate: as asked for, but too low or too high. H25 rounded-updates: weights too coarse
for the step. H26 optimizer-not-stepping: nothing moves.

## References
AdamW (Loshchilov and Hutter, 2019); `docs/specification.md`, update.
"""

from flatline.hypotheses.departure import DepartureAlong


class UpdateDeparts(DepartureAlong):
    id = "H58"
    name = "update-departs"
    headline = "Your optimizer does not apply the update it should."
    stage = "update"
    named_by = ("H06", "H25", "H26")
    meaning = "What the gradient says does not arrive in the weights."
    fix = "Find what freezes, averages or leaves out weights, or sets the learning rate."
