"""The loss is not on exactly the tokens that the model wrote.

## What goes wrong
A mask that is shifted, cut, kept only in part of the rows, or built for another batch trains some
tokens that nobody sampled and leaves out some that were.

## Sign
Along a recorded run: each rollout has as many tokens with a loss as the model wrote; one that was
cut off has none, if that is asked for. Exact.

## Probe
The batch that the passes get against what was sampled: the same ids, a loss on each token that the
model wrote and on no other, and none on cut completions if `mask_truncated_completions` asks for
that. Exact.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Build the mask from the sampled ids, and assert that its sum is the number of sampled tokens.

## Not to be confused with
H02 token-masking: tool output is trained, or whole turns are not; that is tested separately. H14
end-of-sequence: only the last token. H09 loss-mask-as-attention: a correct loss mask in the wrong
place.

## References
DAPO (Yu et al., 2025), overlong filtering; `docs/specification.md`, mask.
"""

from flatline.hypotheses.departure import DepartureAlong


class MaskDeparts(DepartureAlong):
    id = "H51"
    name = "mask-departs"
    headline = "Your loss is not on exactly the tokens the model wrote."
    stage = "mask"
    named_by = ("H02", "H07", "H09", "H11", "H12", "H14", "H36", "H65")
    meaning = "Some tokens are trained that were not sampled, or sampled ones are not."
    fix = "Make the loss mask from the sampled ids."
