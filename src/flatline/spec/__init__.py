"""What one optimizer step of GRPO must be, from what was asked for and from first principles.

Pure functions on tensors, one file a stage, readable beside the papers. Nothing here knows a
trainer, and nothing is taken from one: a library that departs from its own arguments is then seen.

    rows          each prompt G times in a row, every row of the data in its turn
    prompts       the messages through the chat template, nothing else in front of the completion
    completions   what was sampled up to the first stop token
    mask          the tokens that carry a loss: what the model wrote
    rewards       each function on its own row; their weighted sum
    advantages    baseline and scale of the group
    log-probs     of policy, old policy and reference: each row alone, without padding or dropout
    ratio and KL  importance ratio, clip, distance from the reference
    loss          one number from all tokens of the step
    gradient      of that number
    update        clipping, optimizer and the rate in force at this step
    delivery      the sampler samples with the weights that were trained

What is not specified raises `NotSpecified`: it is unknown, not wrong.
"""

from flatline.spec.asked import Asked, NotSpecified

STAGES = (
    "rows",
    "prompts",
    "completions",
    "mask",
    "rewards",
    "advantages",
    "log-probs",
    "ratio and KL",
    "loss",
    "gradient",
    "update",
    "delivery",
)
"""In the order in which one step makes them: the first that departs is the cause."""

__all__ = ["STAGES", "Asked", "NotSpecified"]
