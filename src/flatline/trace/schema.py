"""What a trace holds: the columns of its tables, in one place.

A run directory has `run.json` and five tables. Only `step` and `rollout` are always there; any
other value may be null, because an imported log has only what its source had. A reader that meets
another `SCHEMA_VERSION` refuses instead of guessing.

    steps        one row per optimizer step; process 0 writes it
    rollouts     one row per rollout; every process writes its own
    tokens       one row per rollout, lists with one entry per token
    weights      one row per trainable tensor and step; process 0 writes it
    vocabulary   the text of every token id that was seen
"""

import pyarrow as pa

SCHEMA_VERSION = 1

_NAMED_NUMBERS = pa.map_(pa.string(), pa.float64())

STEPS = pa.schema(
    [
        ("step", pa.int32()),  # optimizer step, from 1
        ("time", pa.float64()),  # seconds since 1970 at its end
        ("seconds", pa.float64()),  # the whole step
        ("seconds_sampling", pa.float64()),
        ("seconds_scoring", pa.float64()),  # log-probs and rewards of what was sampled
        ("seconds_backward", pa.float64()),
        ("reward", pa.float64()),  # mean over the step's rollouts
        ("reward_std_within", pa.float64()),  # mean over groups of the std (ddof 1) inside one
        ("zero_std_share", pa.float64()),  # groups whose rewards are all equal
        ("advantage_max", pa.float64()),  # largest |advantage|
        ("kl", pa.float64()),  # k3 estimate (RLOO: k1) to the reference, mean over trained tokens
        ("kl_max", pa.float64()),  # the largest of one token
        ("ratio_max", pa.float64()),  # largest |log(new / old)| of a trained token
        ("logprob_gap", pa.float64()),  # mean |sampler - trainer| over trained tokens
        ("logprob_gap_max", pa.float64()),
        ("clip_share", pa.float64()),  # trained tokens, or sequences, whose ratio was clipped
        ("entropy", pa.float64()),
        ("kl_least", pa.float64()),  # of the means that a trainer may log of it: over tokens or
        ("kl_most", pa.float64()),  # completions, of the whole step or of each pass; and the most
        ("clip_least", pa.float64()),
        ("clip_most", pa.float64()),
        ("entropy_least", pa.float64()),
        ("entropy_most", pa.float64()),
        ("loss", pa.float64()),
        ("grad_norm", pa.float64()),  # before clipping
        ("learning_rate", pa.float64()),
        ("completion_length", pa.float64()),  # tokens, mean
        ("truncated_share", pa.float64()),  # rollouts that a limit ended
        ("heldout_rows", pa.float64()),  # trained rows that an evaluation had sampled
        ("heldout_reward", pa.float64()),  # where the run evaluates itself; step 0 is the start
        ("metrics", _NAMED_NUMBERS),  # all that the trainer logged, under its own names
    ]
)

ROLLOUTS = pa.schema(
    [
        ("step", pa.int32()),  # the first optimizer step that trains on it
        ("rank", pa.int16()),
        ("rollout", pa.int32()),  # position in the step's generation, counted over all processes
        ("group", pa.int32()),  # as GRPO forms them: position // num_generations
        ("prompt_id", pa.string()),  # the problem's id, else a hash of the prompt's token ids
        ("hops", pa.int16()),  # difficulty as the task counts it
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("parts", _NAMED_NUMBERS),  # every reward function or named part of the reward
        ("weight_version", pa.int64()),  # optimizer steps behind the weights that sampled it
        ("finish", pa.string()),  # a `Finish` of ours; "eos", "length", "stop" of other engines
        ("turns", pa.int16()),
        ("tool_calls", pa.int16()),
        ("tool_errors", pa.int16()),
        ("malformed_calls", pa.int16()),
        ("malformed_answers", pa.int16()),
        ("supporting", pa.int16()),  # documents that the problem needs
        ("supporting_seen", pa.int16()),  # of these, shown to the model
        ("documents_dropped", pa.int16()),  # found, but left out to keep within the context
        ("prompt_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("model_tokens", pa.int32()),  # of the completion, written by the model
        ("trained_tokens", pa.int32()),  # of the completion, with a loss
        ("as_sampled", pa.int8()),  # 1: trained on the very ids that were sampled; 0: on others
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("gold", pa.string()),  # the right answer, where the data has one
    ]
)

TOKENS = pa.schema(
    [
        ("step", pa.int32()),
        ("rank", pa.int16()),
        ("rollout", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("prompt_attended", pa.list_(pa.uint8())),  # attention mask really passed to the model
        ("ids", pa.list_(pa.int32())),  # the completion, whoever wrote it
        ("author", pa.list_(pa.uint8())),  # `flatline.rollout.record.Author`
        ("trained", pa.list_(pa.uint8())),  # loss mask
        ("attended", pa.list_(pa.uint8())),
        ("sampler", pa.list_(pa.float32())),  # log-prob when it was sampled
        ("trainer", pa.list_(pa.float32())),  # log-prob in the pass that is trained through
        # The same at the temperature of the loss, where that is not 1 and `trainer` is taken at 1.
        ("scored", pa.list_(pa.float32())),
        ("old", pa.list_(pa.float32())),  # log-prob that the ratio is taken against
        ("reference", pa.list_(pa.float32())),
        ("weight", pa.list_(pa.float32())),  # in the loss: minus its derivative by the log-prob
        # What the sampler had; null where it is what is trained, or unknown (`as_sampled` says).
        ("sampled_prompt_ids", pa.list_(pa.int32())),
        ("sampled_ids", pa.list_(pa.int32())),
    ]
)

WEIGHTS = pa.schema(
    [
        ("step", pa.int32()),
        ("name", pa.string()),
        ("size", pa.int64()),  # elements
        ("dtype", pa.string()),
        ("norm", pa.float64()),  # after the step
        ("grad_norm", pa.float64()),  # before clipping
        ("update_norm", pa.float64()),  # of the change that the step made
        ("changed_share", pa.float64()),  # elements that are not what they were
        ("sampled", pa.int64()),  # elements looked at for the last two; less than `size` if large
        ("travel", pa.float64()),  # of the way from where the recording began, after the step
        ("between", pa.float64()),  # of what changed since the step before, outside of any step
        ("in_optimizer", pa.int8()),  # 1: the optimizer holds this very tensor; null if sharded
    ]
)

VOCABULARY = pa.schema([("id", pa.int32()), ("text", pa.string())])

TABLES = {
    "steps": STEPS,
    "rollouts": ROLLOUTS,
    "tokens": TOKENS,
    "weights": WEIGHTS,
    "vocabulary": VOCABULARY,
}
