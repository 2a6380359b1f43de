"""The advantages are not those of the rewards.

## What goes wrong
No baseline, that of the batch instead of the group, a spread over the wrong axis, a clamp, another
group size: each turns the policy gradient into that of another objective, and the loss curve looks
the same.

## Sign
Along a recorded run: the advantages that were trained on against the formula applied to the
recorded rewards, at every step, in double precision.

In a loop that is only watched the formula is not known, but the weight of every row in the loss is.
Any baseline of the group, the batch, a prompt or a running mean makes these weights a straight line
of the rewards inside a prompt, and raises no alarm. Three mistakes show at three steps or more, the
first two exactly:

- rewards differ inside groups, and every row has the same weight (within 0.1 %; not if it is the
  same at every step, as in imitation);
- the weights are rewards less the mean of rows at a stride (or of neighbours, if rows of a prompt
  are not neighbours) within 0.5 %, and no baseline of their own prompt fits within 10 %;
- the line falls in practically every group (98 % of eight or more): the loss pushes against the
  rewards.

## Probe
The trainer's advantages against the formula of `scale_rewards` on what each row was paid, in double
precision.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Compute `(r - r.mean()) / (r.std() + 1e-4)` of the first group by hand; the finding shows both.
Print the shapes of rewards, advantages and log-probs: `view(G, B)` of rows that `repeat_interleave`
made mixes prompts, and (N, 1) times (N,) is a table that gives all rows the mean advantage.

## Not to be confused with
H01 advantage-scaling: as asked for, but too small or too large. H33 group-integrity: the formula is
right, but the rows are not one group. TRL 0.22.0 and 0.22.1 scaled where `none` was asked for and
not where `group` was.

## References
GRPO (Shao et al., 2024); Dr. GRPO (Liu et al., 2025); TRL pull request 3992.
"""

from flatline.hypotheses.departure import DepartureAlong


class AdvantagesDepart(DepartureAlong):
    id = "H53"
    name = "advantages-depart"
    headline = "Your advantages do not follow from your rewards."
    stage = "advantages"
    named_by = ("H01", "H22", "H33", "H35")
    meaning = "The gradient belongs to an objective other than the one asked for."
    fix = "Fix the code that turns rewards into advantages; the finding shows a group of both."

    def _follows(self, first: bool) -> tuple[str, ...]:
        """Advantages of about 0 leave updates that rounding swallows."""
        return (*super()._follows(first), "H25")
