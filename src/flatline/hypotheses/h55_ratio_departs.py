"""The ratio, the clip or the KL is not the one asked for.

## What goes wrong
Clip bounds are swapped, old log-probs never reach the loss, or a KL term is logged but not in the
loss: single tokens pull too much, too little or not at all.

## Sign
In a loop that is only watched: in practically every group the rows that earn more weigh less in the
loss, and when a token is trained again after an update, its weight shrinks by a nat for each nat
that it became more likely (-1.2 to -0.8). Then the ratio is old / new: with new / old the weight
grows by as much, and without a ratio it stays.

## Probe
The derivative of the loss by each token's log-prob against the specified one, on the values that
the pass itself was given, with old log-probs set so that ratios lie inside the clip and beyond it
on either side. Unlike in H56, tokens of one row are out of proportion to each other. If a known
change of the arguments explains the difference, it is named.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Look at the token of the finding: its advantage, its ratio, and what the loss should do with it.

## Not to be confused with
H29 ratio-clipping: the clip asked for stops too much. H03 kl-divergence: the KL asked for grows.
H56 loss-departs: whole rows weigh too much or too little.

## References
PPO (Schulman et al., 2017); GRPO; DAPO; GSPO (Zheng et al., 2025); Schulman (2020), approximating
KL.
"""

from flatline.hypotheses.departure import DepartureAlong


class RatioDeparts(DepartureAlong):
    id = "H55"
    name = "ratio-departs"
    headline = "The ratio, clip or KL in your loss is not the configured one."
    stage = "ratio and KL"
    named_by = ("H03", "H22", "H29", "H30", "H31")
    meaning = "Single tokens do not pull as the objective says."
    fix = "Compare the loss with the formula of its arguments; the finding says what it looks like."
