"""Which hypothesis has which remedy; and of the others, why not and what a person must change."""

from flatline.remedies.attention import see_every_token, see_no_padding
from flatline.remedies.base import Remedy
from flatline.remedies.batch import (
    advantages_by_formula,
    loss_on_what_was_written,
    old_of_this_batch,
)
from flatline.remedies.rewards import paid_as_earned, right_answers_paid
from flatline.remedies.sampling import (
    ids_as_sampled,
    prompts_through_the_template,
    sampler_of_trl,
    weights_delivered,
)
from flatline.remedies.scoring import logprobs_of_the_policy, loss_by_formula
from flatline.remedies.settings import (
    doubled,
    float32_weights,
    groups_of_trl,
    no_dropout,
    shuffled,
    with_setting,
)
from flatline.remedies.together import both, together
from flatline.remedies.update import gradient_of_the_loss, step_of_the_optimizer

SEE_EVERY_TOKEN = Remedy(
    name="see-every-token",
    what="gives the model ones on every token of a row, whatever carries a loss",
    apply=see_every_token,
)
SEE_NO_PADDING = Remedy(
    name="see-no-padding",
    what="hides padding from the model",
    apply=see_no_padding,
)
LOSS_ON_WHAT_WAS_WRITTEN = Remedy(
    name="loss-on-what-was-written",
    what="puts the loss on exactly the tokens that the model wrote",
    apply=loss_on_what_was_written,
)
PROMPTS = Remedy(
    name="prompts-through-the-template",
    what="renders each prompt through the chat template as it is in the data",
    apply=prompts_through_the_template,
)
IDS_AS_SAMPLED = Remedy(
    name="ids-as-sampled",
    what="trains the very ids that were sampled",
    apply=ids_as_sampled,
)
SAMPLER_OF_TRL = Remedy(
    name="sampler-of-trl",
    what="samples as TRL does, with the temperature and limits asked for",
    apply=sampler_of_trl,
)
WEIGHTS_DELIVERED = Remedy(
    name="weights-delivered",
    what="gives whichever model samples the trained weights before it samples",
    apply=weights_delivered,
    beyond_gradient=True,
)
PAID_AS_EARNED = Remedy(
    name="paid-as-earned",
    what="gives each row what the reward functions paid for it, with the weights asked for",
    apply=paid_as_earned,
)
RIGHT_ANSWERS_PAID = Remedy(
    name="right-answers-paid",
    what="pays an answer that is marked and equals gold as right, and another number as wrong",
    apply=right_answers_paid,
    of_reward=True,
)
ADVANTAGES = Remedy(
    name="advantages-by-formula",
    what="computes advantages from the rewards by the formula asked for",
    apply=advantages_by_formula,
)
LOGPROBS = Remedy(
    name="log-probs-of-the-policy",
    what="scores tokens behind everything in front of them, at the temperature of sampling, and "
    "takes old log-probs of this very batch",
    apply=together(logprobs_of_the_policy, old_of_this_batch),
)
LOSS = Remedy(
    name="loss-by-formula",
    what="computes ratio, clip, KL and loss by the formula asked for",
    apply=loss_by_formula,
)
GRADIENT = Remedy(
    name="gradient-of-the-loss",
    what="lets nothing between the loss and the optimizer change the gradient",
    apply=gradient_of_the_loss,
    beyond_gradient=True,
)
STEP = Remedy(
    name="step-of-the-optimizer",
    what="steps with the optimizer and schedule asked for and keeps the weights as it left them",
    apply=step_of_the_optimizer,
    beyond_gradient=True,
)
GROUPS = Remedy(
    name="groups-of-trl",
    what="deals out rows in TRL's own groups, and pays each row what it earned",
    apply=together(groups_of_trl, paid_as_earned),
)
NO_KL = with_setting("beta", 0.0, "has no KL in its loss")
LONGER = doubled("max_completion_length", "lets completions be twice as long")

REMEDIES: dict[str, Remedy] = {
    "H01": with_setting("scale_rewards", "none", "does not divide advantages by a spread"),
    "H02": LOSS_ON_WHAT_WAS_WRITTEN,
    "H03": NO_KL,
    "H04": LONGER,
    "H06": WEIGHTS_DELIVERED,
    "H07": LOSS_ON_WHAT_WAS_WRITTEN,
    "H09": SEE_EVERY_TOKEN,
    "H10": PROMPTS,
    "H11": IDS_AS_SAMPLED,
    "H13": LONGER,
    "H14": LOSS_ON_WHAT_WAS_WRITTEN,
    "H15": SEE_NO_PADDING,
    "H17": WEIGHTS_DELIVERED,
    "H21": both(SAMPLER_OF_TRL, LOGPROBS),
    "H22": with_setting(
        "vllm_importance_sampling_mode", "token_truncate", "corrects token by token, and capped"
    ),
    "H23": Remedy(
        name="no-dropout", what="drops nothing in any layer", apply=no_dropout, setting="dropout=0"
    ),
    "H25": Remedy(
        name="float32-weights",
        what="keeps the trained weights in float32",
        apply=float32_weights,
        setting='dtype="float32"',
        beyond_gradient=True,
    ),
    "H26": STEP,
    "H27": with_setting(
        "max_grad_norm", 1.0, "clips gradients at a norm of 1", beyond_gradient=True
    ),
    "H28": LOSS,
    "H29": with_setting("num_iterations", 1, "trains on each batch once", beyond_gradient=True),
    "H31": NO_KL,
    "H33": GROUPS,
    "H34": SAMPLER_OF_TRL,
    "H35": with_setting("loss_type", "dr_grpo", "weighs all tokens equally"),
    "H39": RIGHT_ANSWERS_PAID,
    "H42": doubled("max_tool_calling_iterations", "lets episodes have twice as many turns"),
    "H44": Remedy(
        name="shuffled",
        what="shuffles the rows",
        apply=shuffled,
        setting="shuffle_dataset=True",
        beyond_gradient=True,
    ),
    "H49": PROMPTS,
    "H50": both(IDS_AS_SAMPLED, SAMPLER_OF_TRL),
    "H51": LOSS_ON_WHAT_WAS_WRITTEN,
    "H52": PAID_AS_EARNED,
    "H53": ADVANTAGES,
    "H54": LOGPROBS,
    "H55": LOSS,
    "H56": LOSS,
    "H57": GRADIENT,
    "H58": STEP,
    "H59": both(WEIGHTS_DELIVERED, SAMPLER_OF_TRL),
    "H61": LOGPROBS,
    "H64": LOGPROBS,
}
"""By the code of the hypothesis."""

WITHOUT: dict[str, str] = {
    "H00": "It is a ladder of positive controls and names no cause; climb it with `--ladder`.",
    "H05": "What a reward should pay for is the user's to say: take the noisy part out of "
    "`reward_funcs`, or give it a smaller weight in `reward_weights`.",
    "H08": "The problem is in the evaluation, not in the training: evaluate with the prompts, "
    "sampler and limits of training.",
    "H12": "Only the code that rewrites the history knows what was there: keep the sampled ids "
    "of earlier turns.",
    "H16": "Tokenizer and template are made before the trainer: take the model's own, and let only "
    "one of the two add special tokens.",
    "H18": "Rounding at the merge happens inside the sampler: deliver weights in float32, or the "
    "adapter itself.",
    "H19": "The cache is the sampler's own: empty it after every update (`reset_prefix_cache` of "
    "vLLM) and check that it is empty.",
    "H20": "Both sides compute what they are told to, with different digits: set one precision for "
    "sampler and trainer (`bf16`, the sampler's `dtype`).",
    "H24": "No single rate is right for a script: choose `learning_rate` by the checkup's KL of "
    "one step, and compare the two with `--command` and `--arms`.",
    "H30": "What was lost is no longer in the weights: start again from before the collapse, with "
    "`epsilon_high` wider or an entropy bonus.",
    "H32": "Groups without spread come from data or reward: choose prompts that are solved 10 % to "
    "90 % of the time.",
    "H36": "What a turn is worth is the user's to say: pay for it in a reward function.",
    "H37": "What form is worth is the user's to say: lower its weight in `reward_weights`.",
    "H38": "Only a person can say what the reward should not pay for: fix the function that the "
    "finding quotes.",
    "H40": "The factor is in the reward function: take it out there.",
    "H41": "The tool or its parser must be fixed: run the quoted call by hand.",
    "H43": "What was given up is no longer in the weights: start again from before the collapse.",
    "H45": "There is nothing to select from: take other problems or another starting policy.",
    "H46": "The split is made before the trainer: hold out other rows.",
    "H47": "More data per step is no repair of one: take more prompts a step, and more seeds.",
    "H48": "The problem is in what is logged, not in what is trained: fix what writes the log.",
    "H60": "The problem is between processes, in how the script is launched and gathers: let "
    "accelerate split the data and prepare the model.",
    "H62": "Only the sampler knows which experts it chose: have it return them, and replay them "
    "in the trainer.",
    "H63": "What the sampler makes of weights is its own: let it take all of them at every "
    "delivery, and quantise them again.",
    "H65": "What never came back is not in the batch: let the trainer wait for it, or allow it to "
    "be older.",
    "H66": "How drafts are accepted is the sampler's own: turn speculative decoding off, or set "
    "its exact rule.",
    "H67": "Only the code that moves rows knows which images are theirs: move both together.",
    "H68": "What fails is the judge, which only its owner can fix: return None for what could not "
    "be judged, or ask again.",
    "H69": "Which adapter a sampler is to use is said where it is asked: name the adapter with "
    "every request.",
}
"""Of those without a remedy, why, and what a person must change."""
