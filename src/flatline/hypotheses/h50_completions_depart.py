"""The trainer goes on with other completions than the policy drew for these prompts.

## What goes wrong
Prompts are padded on the side where the sampler goes on, completions are given to another row, or
the sampler draws from something else than the policy behind this prompt. The loss then trains on
tokens that the policy would not have said here.

## Sign
None: it takes the trainer itself.

## Probe
A few tokens are sampled with TRL's own `generate`; the model's head, heard while it samples, gives
the sampler's log-probs. What the trainer takes over must be what was drawn, row by row, and each
log-prob must be the policy's of that token behind that prompt alone, up to rounding. In TRL's tool
loop: what stands between two turns must be the reply of the tool through the template, as often in
the trained ids as in the messages that reward functions read; calls must get replies, and none
beyond `max_tool_calling_iterations`; a reply must bear the name of a call. Where every call gets an
error, the first three are made by hand: then the tool must fail there, too. The sampler must
choose among the tokens that were asked for (`top_p`, `top_k`, `min_p`, `repetition_penalty`).

## Experiment
None: what departs is code and not a setting. Mend it, and compare matched seeds before and after.

## Fix
Pad prompts on the left at the sampler; return completions in the order of the prompts; hand on the
drawn ids and not their text.

## Not to be confused with
H15 padding: the trainer, and not the sampler, sees padding. H06 lora-weight-sync and H59
delivery-departs: right before the weights move and wrong after it. H21 sampling-parameters: another
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
