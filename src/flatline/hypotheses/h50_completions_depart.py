"""The trainer trains on other completions than the policy sampled for these prompts.

## What goes wrong
Prompts are padded on the side where the sampler continues, completions are assigned to another row,
or the sampler draws from something other than the policy after this prompt. The loss then trains
tokens that the policy would not have written here.

## Sign
None: it needs the live trainer.

## Probe
A few tokens are sampled with TRL's own `generate`; a hook on the model's head records the sampler's
log-probs. The trainer must take over what was drawn, row by row, and each log-prob must be the
policy's of that token after that prompt alone, up to rounding.

In TRL's tool loop, what comes between two turns must be the reply of the tool through the template,
as often in the trained ids as in the messages that reward functions read. Calls must get replies,
but none beyond `max_tool_calling_iterations`, and a reply must bear the name of a call. If every
call gets an error, the first three are repeated by hand: the tool must then fail there too.

The sampler must choose among the tokens that were asked for (`top_p`, `top_k`, `min_p`,
`repetition_penalty`).

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Pad prompts on the left for the sampler; return completions in the order of the prompts; pass on the
drawn ids, not their text.

## Not to be confused with
H15 padding: the trainer sees padding, not the sampler. H06 lora-weight-sync and H59
delivery-departs: right before the weights move, wrong afterwards. H21 sampling-parameters: another
temperature.

## References
`docs/specification.md`, completions.
"""

from flatline.hypotheses.departure import Departure


class CompletionsDepart(Departure):
    id = "H50"
    name = "completions-depart"
    headline = "Your trainer trains on other completions than were sampled."
    stage = "completions"
    named_by = (
        "H06",
        "H10",
        "H11",
        "H12",
        "H13",
        "H14",
        "H15",
        "H16",
        "H17",
        "H18",
        "H19",
        "H20",
        "H21",
    )
    meaning = "The policy is trained on tokens that it did not say, or not here."
    fix = "Pad prompts on the left for the sampler, and keep the rows in their order."
