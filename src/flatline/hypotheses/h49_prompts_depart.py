"""The text in front of a completion is not the prompt as its chat template renders it.

## What goes wrong
Messages are normalised, cut, rendered with another template or tokenised twice on their way to the
sampler. The policy answers other questions than those of the data, and nothing in the log says so.

## Sign
None: it needs the live trainer.

## Probe
The ids that the trainer samples from against the messages of the row, rendered by the tokenizer's
own chat template with the options asked for. Any other id is a fault; for chats this includes the
prompt that vLLM reports having sampled after. A system or user message that the template leaves out
is a fault too: the prompt is the same whatever that message says.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Compare what `_tokenize_prompts` returns with `tokenizer.apply_chat_template(prompt,
add_generation_prompt=True)` and fix what changes the ids in between.

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
    named_by = ("H09", "H10", "H11", "H12", "H16")
    meaning = "The policy is trained on other questions than those that were asked."
    fix = "Find and remove what changes the messages before the chat template."
