"""What stands in front of a completion is not the prompt through its chat template.

## What goes wrong
Messages are normalised, cut, rendered with another template or tokenised twice on their way to the
sampler. The policy answers other questions than those of the data, and nothing in the log says so.

## Sign
None: it takes the trainer itself.

## Probe
The ids that the trainer samples from against the messages of the row through the tokenizer's own
chat template, with the options asked for. Any other id is a fault; of chats, also one of those that
vLLM says it sampled behind. So is a message of the system or the user that the template leaves out:
the prompt is the same whatever it says.

## Experiment
None: what departs is code and not a setting. Mend it, and compare matched seeds before and after.

## Fix
Compare what `_tokenize_prompts` returns with `tokenizer.apply_chat_template(prompt,
add_generation_prompt=True)` and mend what stands between them.

## Not to be confused with
H10 template-drift: sampler and trainer render differently, and each may be right. H16
special-tokens: the template itself doubles or loses one. H04 context-truncation: a prompt that is
cut on purpose.

## References
`docs/specification.md`, prompts.
"""

from flatline.hypotheses.departure import Departure


class PromptsDepart(Departure):
    id = "H49"
    name = "prompts-depart"
    headline = "Your trainer trains on other prompts than your dataset and chat template make."
    stage = "prompts"
    named_by = ("H10", "H11", "H12", "H16")
    meaning = "The policy is trained on other questions than those that were asked."
    fix = "Find and remove what changes the messages before the chat template."
