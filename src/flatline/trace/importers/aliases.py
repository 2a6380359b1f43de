"""One table of metric names: which name of which trainer fills which column of `steps`.

A name fills a column only if its value is what the column means. What is close but different stays
in `metrics` under its own name, and `KEPT` says why. Names are compared in lower case, with `_` for
blanks, without a leading `train/`, without the name of a run that W&B puts before it in an exported
chart (`run-3 - train/reward`), and without a unit in brackets that `UNITS` has. An earlier name
of a column beats a later one; `*` stands for any text.

Names come from TRL, old and new (and Unsloth, which logs what TRL logs), transformers, verl,
OpenRLHF, prime-rl, NeMo-RL, SkyRL, open-instruct, slime, AReaL, ROLL, trlx, tinker-cookbook,
flatline's own metrics, and from plain logs.
"""

from typing import NamedTuple

STEP = (
    "step",
    "global_step/max_steps",  # ms-swift: "3/250"; its last row, about the whole run, lacks it
    "global_step",
    "trainer/global_step",  # SkyRL, Lightning
    "training/global_step",  # verl
    "global_steps",
    "training_step",  # open-instruct
    "train_step",
    "optimizer_step",
    "progress/step",
    "iteration",
    "iter",
    "it",
    "_step",  # W&B counts calls of `log`, which is a step only where nothing better is there
    "training_iteration",  # Ray
    "training_steps",
    "opt_step",
    "update_step",
    "progress/batch",  # tinker-cookbook
    "rollout/step",  # slime
    "num_updates",
    "update",
    "eval/global_step",  # OpenRLHF, in rows of an evaluation: other rows lack it
)
"""Names of the optimizer step, best first."""
EVAL_STEP = STEP[-1]
"""The same counter as the step of the training rows, in rows that have no other name of it."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "time": ("_timestamp", "wall_time", "time"),  # the last: prime-rl
    "seconds": (
        "seconds",
        "step_time",  # TRL
        "timing_s/step",  # verl
        "time/step",  # prime-rl
        "timing/step",  # SkyRL
        "timing/train/total_step_time",  # NeMo-RL
        "timing/total_step_time",  # NeMo-RL, printed
        "timing/step_total",  # OpenRLHF
        "time_per_step",
        "seconds_per_step",
        "step_seconds",
        "sec",
        "secs",
        "iter_time",
        "time/total",  # tinker-cookbook
    ),
    "seconds_sampling": (
        "seconds_sampling",
        "time/sampling",  # flatline
        "timing_s/gen",
        "timing/generate",
        "timing/train/generation",
        "timing/generation",  # OpenRLHF
    ),
    "seconds_scoring": (
        "seconds_scoring",
        "time/scoring",  # flatline
        "timing/fwd_logprobs_values_reward",  # SkyRL
        "timing/train/policy_and_reference_logprobs",  # NeMo-RL, without the rewards
        "timing/policy_and_reference_logprobs",  # NeMo-RL, printed
        "timing/make_experience",  # OpenRLHF
    ),
    "seconds_backward": (
        "seconds_backward",
        "time/backward",  # flatline
        "timing_s/update_actor",
        "time/forward_backward",
        "timing/policy_train",
        "timing/train/policy_training",
        "timing/policy_training",  # NeMo-RL, printed
        "timing/ppo_train",  # OpenRLHF
    ),
    "reward": (
        "reward",  # TRL, NeMo-RL, OpenRLHF
        "critic/score/mean",  # verl: the reward function's score, before any KL penalty
        "reward/avg_raw_reward",  # SkyRL
        "agg/all/reward/mean",  # prime-rl; `agg/effective` leaves filtered rollouts out
        "agg/all/*/reward/mean",  # prime-rl 0.8, by the name of the agent
        "reward/all/mean",
        "reward/mean",
        "mean_reward",
        "avg_reward",
        "average_reward",
        "reward_mean",
        "reward_avg",
        "rewards/mean",
        "train_reward",
        "episode_reward",
        "mean_episode_reward",
        "rollout/ep_rew_mean",
        "critic/rewards/mean",  # verl, see CAVEATS
        "objective/scores",  # TRL's PPO: before the KL penalty
        "rewards_mean",
        "mean_rewards",
        "avg_rewards",
        "rollout/raw_reward",  # slime
        "env/reward_mean",  # TRL before 0.12
        "env/all/reward/total",  # tinker-cookbook
        "rollout_scores/mean",  # trlx
        "*_actor/task_reward/avg",  # AReaL
        "scores",  # open-instruct
        "rew",
        "rew_mean",
        "mean_rew",
        "avg_rew",
        "mean_score",
        "avg_score",
        "score_mean",
        "rollout_reward_mean",  # a scalar that TensorBoard saved, named by its file
        "score",
        "ret_mean",
        "return_mean",
        "mean_return",
    ),
    "reward_std_within": (
        "reward_std_within",
        "debug/reward_std",  # flatline: inside a group, unlike TRL's `reward_std`
        "group_reward_std",  # OpenRLHF
    ),
    "zero_std_share": (
        "zero_std_share",
        "frac_reward_zero_std",
        "frac_zero_std",
        "zero_std_groups",
        "zero_std_ratio",
        "zero_std_frac",
        "zero_variance_ratio",
        "frac_zero_variance",
        "zero_variance_frac",
        "zero_advantage",  # prime-rl's output: of the rollouts
        "frac_dead",
        "dead_groups",
        "uniform_prompt_frac",
    ),
    "advantage_max": ("advantage_max", "debug/advantage_max"),
    "kl": (
        "kl",  # TRL: k3, mean over tokens (in old versions over sequences)
        "actor/kl_loss",  # verl
        "policy/policy_kl",  # SkyRL
        "kl_penalty",  # NeMo-RL: divided by its coefficient again, k3
        "kl_to_ref",
        "kl_ref",
        "ref_kl",
        "approx_kl_ref",
        "kl_to_reference",
    ),
    "kl_max": ("kl_max",),
    "ratio_max": ("ratio_max",),
    "logprob_gap": (
        "logprob_gap",
        "sampling/sampling_logp_difference/mean",  # TRL
        "debug/logprob_gap_mean",  # flatline
        "policy/rollout_train_logprobs_abs_diff_mean",  # SkyRL
        "debug/vllm_vs_local_logprob_diff_mean",  # open-instruct
        "train_rollout_logprob_abs_diff",  # slime
    ),
    "logprob_gap_max": (
        "logprob_gap_max",
        "sampling/sampling_logp_difference/max",
        "debug/logprob_gap_max",
        "debug/vllm_vs_local_logprob_diff_max",
    ),
    "clip_share": (
        "clip_share",
        "clip_ratio/region_mean",  # TRL
        "clip_ratio",  # old TRL
        "actor/pg_clipfrac",
        "policy/ppo_clip_ratio",
        "policy/loss_metrics/clip_ratio",
        "ppo_clip_ratio",  # OpenRLHF
        "pg_clipfrac",  # slime
        "policy/clipfrac_avg",  # open-instruct, TRL's PPO
        "ppo/policy/clipfrac",  # TRL before 0.12
        "clip_fraction",
        "clip_frac",
        "clipfrac",
        "clipfr",
    ),
    "entropy": (
        "entropy",
        "actor/entropy",
        "actor/entropy_loss",  # verl's older name for the entropy itself
        "policy/policy_entropy",
        "entropy/all/mean",
        "entropy/mean",
        "approx_entropy",  # NeMo-RL: from the sampled tokens only
        "policy_entropy",
        "policy/entropy_avg",  # open-instruct
        "ppo/policy/entropy",  # TRL before 0.12
        "*_actor/update/entropy/avg",  # AReaL
        "optim/entropy",  # tinker-cookbook
        "mean_entropy",
        "entropy_mean",
        "avg_entropy",
        "token_entropy",
        "mean_token_entropy",
        "ent",
    ),
    "loss": (
        "loss",
        "loss/mean",
        "policy/final_loss",
        "actor/loss",
        "training_loss",  # tables of transformers in a notebook
        "total_loss",
        "loss/total",
        "loss/total_avg",  # open-instruct
        "losses/total_loss",  # trlx
        "ppo/loss/total",  # TRL before 0.12
    ),
    "grad_norm": (
        "grad_norm",
        "actor/grad_norm",
        "policy/raw_grad_norm",
        "policy/grad_norm",
        "optim/grad_norm",
        "actor_grad_norm",
        "gradient_norm",
        "gnorm",
        "*_actor/update/grad_norm",  # AReaL
        "global_grad_norm",
        "total_grad_norm",
        "gradnorm",
        "gn",
    ),
    "learning_rate": (
        "learning_rate",
        "lr",
        "actor/lr",
        "policy/policy_lr",
        "optim/lr",
        "optim/learning_rate",
        "optimizer/learning_rate",
        "actor_lr",
        "actor/learning_rate",
        "policy_lr",
        "optimizer/lr",
        "lr-pg_0",  # slime
        "learning_rate_group_0",  # trlx
        "ppo/learning_rate",  # TRL before 0.12
        "eta",
        "*_actor/update/lr",  # AReaL
    ),
    "completion_length": (
        "completions/mean_length",  # TRL
        "completion_length",  # old TRL
        "response_length/mean",  # verl
        "generate/avg_num_tokens",  # SkyRL
        "completion_len/all/mean",  # prime-rl
        "completion_len/mean",
        "agg/all/*/num_output_tokens/mean",  # prime-rl 0.8
        "mean_gen_tokens_per_sample",  # NeMo-RL
        "mean_generation_length",  # NeMo-RL, printed
        "response_length",  # OpenRLHF
        "mean_response_length",
        "avg_response_length",
        "mean_completion_length",
        "avg_completion_length",
        "gen_len",
        "mean_gen_len",
        "completion_tokens",
        "response_tokens",
        "rollout/response_len/mean",  # slime
        "rollout/response_lengths",  # slime
        "tokens/response_length/mean",  # ROLL
        "tokens/responses_len_mean",  # TRL before 0.12
        "val/sequence_lengths",  # open-instruct: of completions
        "response_len",
        "response_len/mean",
        "response_length_mean",
        "completion_length_mean",
        "completion_len",
        "mean_completion_len",
        "avg_completion_len",
        "mean_completion_tokens",
        "avg_completion_tokens",
        "mean_response_len",
        "avg_response_len",
        "avg_gen_len",
        "gen_length",
        "gen/response_length",
        "mean_output_tokens",
        "avg_output_tokens",
        "mean_output_length",
        "resp_len",
        "len",
        "toks",
    ),
    "truncated_share": (
        "truncated_share",
        "completions/clipped_ratio",
        "response_length/clip_ratio",
        "agg/all/is_truncated/mean",
        "agg/all/*/is_truncated/mean",  # prime-rl 0.8
        "is_truncated/all/mean",
        "is_truncated/mean",
        "truncation_rate",
        "truncated",  # OpenRLHF
        "truncated_rate",
        "truncated_ratio",
        "rollout/truncated_ratio",  # slime
        "*_actor/no_eos_ratios/avg",  # AReaL
        "truncation_ratio",
        "truncated_frac",
        "frac_truncated",
        "truncated_fraction",
        "trunc",
    ),
    "heldout_reward": (
        "heldout_reward",
        "eval_reward",
        "eval/reward",
        "eval_combined",  # flatline
        "eval/combined",
        "eval/all/avg_score",  # SkyRL
        "val-core/*/reward/mean@*",  # verl
        "val-aux/*/reward/mean@*",  # verl, where the reward function also gives `acc`
        "val/test_score/*",  # verl, older
        "eval/*/reward/mean",  # prime-rl
        "eval/*/avg@*",  # prime-rl; in braces and in what it prints
        "validation/accuracy",  # NeMo-RL: the mean reward
        "eval/eval_*_pass1",  # OpenRLHF: the mean reward
        "eval_mean_reward",
        "eval/mean_reward",
        "eval/reward/mean",
        "eval/reward_mean",
        "eval_reward_mean",
        "eval/avg_reward",
        "eval/score",
        "eval_score",
        "val_reward",
        "val/reward",
        "validation/reward",
        "validation_reward",
        "test_reward",
        "test/reward",
        "heldout/reward",
        "held_out_reward",
        "test/env/all/reward/total",  # tinker-cookbook
    ),
}
"""Column of `steps` -> names that may fill it, best first."""


class Words(NamedTuple):
    """What the words of a name must be, where no name of the table is there for a column."""

    needed: tuple[frozenset[str], ...]
    """Of each of these there is one."""
    beside: frozenset[str]
    """Any other must be one of these: where a number comes from, and how it was averaged."""


def _words(*several: str) -> frozenset[str]:
    return frozenset(word for words in several for word in words.split())


_MEAN = "mean avg average overall all total train training batch rollout rollouts sample samples"
_SHARE = "frac fraction share ratio rate pct percent permille ppm bp bps of"
_REFERENCE = "to from vs ref reference base init initial sft per token tokens tok k1 k2 k3 est div"
_NATS = "nat nats mnat mnats"
_GROUPS = "group groups prompt prompts"
_OUTPUT = "out output outputs completion completions response responses resp reply replies answer"
_TEXTS = "answers gen generated generation generations summary summaries solution solutions per"
_SHORT = "ans comp cmpl"
_SAMPLED = "rollout rollouts sample samples train"
_WHERE = "episode episodic charts env task policy rm model objective"

WORDS: dict[str, tuple[Words, ...]] = {
    # A word more makes it something else: a part, a spread, an evaluation.
    "reward": (
        Words(
            (_words("reward rewards score scores return ret"),),
            _words(_MEAN, _WHERE, "raw pct percent permille points"),
        ),
        Words(
            (_words("pay payoff payout payoffs rew R"),), _words(_MEAN, _SHARE, "raw ep env task")
        ),
        Words((_words("r"), _words("mean avg average")), _words("ep train rollout")),
    ),
    "zero_std_share": (
        Words(
            (_words(_GROUPS), _words("same equal dead uniform identical tied degenerate")),
            _words(_SHARE, "all with reward rewards"),
        ),
        Words(
            (_words(_GROUPS), _words("zero no"), _words("std sd var variance spread")),
            _words(_SHARE, "with reward rewards"),
        ),
        Words((_words("dead"),), _words(_SHARE)),
    ),
    "kl": (
        Words(
            (_words("kl"), _words("ref reference init sft base")),
            _words(_MEAN, _REFERENCE, "policy pol"),
        ),
        Words((_words("kl kld refkl"),), _words(_MEAN, "per token tok policy pol div k3", _NATS)),
        Words(
            (_words("drift distance divergence"), _words(_NATS)),
            _words(_MEAN, _REFERENCE, "policy"),
        ),
    ),
    "entropy": (
        Words(
            (_words("entropy ent entr H"),),
            _words(_MEAN, _NATS, "token tokens tok per policy pol actor bits"),
        ),
        Words(
            (_words("doubt uncertainty surprise"), _words(_NATS, "bits bit")),
            _words(_MEAN, "token tokens per policy"),
        ),
    ),
    "learning_rate": (
        Words(
            (_words("lr lrate eta"),),
            _words("actor policy pol optim opt optimizer sched scheduler step cur current now"),
        ),
        Words(
            (_words("learning"), _words("rate")),
            _words("actor policy optim opt optimizer sched scheduler step cur current now"),
        ),
    ),
    "grad_norm": (
        Words(
            (_words("grad grads gradient gradients g"), _words("norm size length l2")),
            _words("global total policy pol actor optim opt mean avg x1000 x100 milli"),
        ),
        Words((_words("gnorm gradnorm"),), _words("global total policy actor optim opt mean avg")),
    ),
    "completion_length": (
        Words(
            (_words("tokens toks tok words len length lengths"), _words(_OUTPUT, _TEXTS, _SHORT)),
            _words("mean avg average", _SAMPLED),
        ),
        Words((_words("len length lengths"), _words("mean avg average")), _words(_SAMPLED)),
    ),
    "truncated_share": (
        Words(
            (_words("cut trunc truncated truncation capped overlong"),),
            _words(_SHARE, _OUTPUT, _SAMPLED, "off answers mean avg"),
        ),
        Words(
            (_words("hit hits hitting at over reached"), _words("cap limit max maxlen")),
            _words(_SHARE, _OUTPUT, _SAMPLED, "len length tokens"),
        ),
    ),
    "clip_share": (
        Words(
            (_words("clip clipfrac clipped"), _words("pg ppo ratio token tokens policy")),
            _words(_SHARE, "mean avg"),
        ),
        # `clipped` by itself may be of the length.
        Words(
            (_words("clip clipf clipfrac"),),
            _words("frac fraction share rate pct percent mean avg"),
        ),
    ),
    "seconds": (
        Words(
            (_words("step iter iteration update"), _words("sec secs seconds time ms s dur")),
            _words("per mean total avg sys system train"),
        ),
        Words((_words("t dt"), _words("step iter it")), _words("s ms sec")),
    ),
}
"""Column -> by which words a name is taken for it, where it is the only one; the first that finds
one decides."""

UNITS: dict[str, float] = {
    **dict.fromkeys(("0-1", "0..1", "mean", "avg", "fraction"), 1.0),
    **dict.fromkeys(("nat", "nats", "nat/token", "nats/token", "nats_per_token"), 1.0),
    **dict.fromkeys(("tokens", "tok", "s", "sec", "seconds"), 1.0),
    **dict.fromkeys(("%", "percent", "pct"), 0.01),
    **dict.fromkeys(("permille", "x1000", "milli", "mnat", "mnats"), 1e-3),
    **dict.fromkeys(("ppm", "micro"), 1e-6),
    **dict.fromkeys(("bp", "bps"), 1e-4),
    "nano": 1e-9,
    "x100": 0.01,
    "ms": 1e-3,
    "bits": 0.6931471805599453,
}
"""Unit behind a name, in brackets or after `_` -> what turns the number into ours. `1e-6` stands
for itself. A name with any other unit in brackets means another quantity, and no alias knows it."""

AFTER_A_NAME = UNITS.keys() - {"mean", "avg", "fraction", "percent", "s", "tokens", "tok"}
"""Those that are units wherever a name ends in them."""

CAVEATS = {
    "critic/rewards/mean": "it has the KL penalty subtracted where `use_kl_in_reward` is on",
    "actor/kl_loss": "it is k3 only with kl_loss_type=low_var_kl (or k3)",
    "policy/policy_kl": "it is k3 only with kl_estimator_type=k3",
    "validation/accuracy": "it is the mean reward of the validation set, whatever its scale",
    "eval/eval_*_pass1": "it is the mean reward of the evaluation set, whatever its scale",
}
"""What a reader of the column should know, told in `run["notes"]` when the name was taken."""

KEPT: dict[str, str] = {
    "reward_std": "over the batch in TRL 1.16, inside groups in old TRL; a log does not say which",
    "*rewards/*": "one reward function or part",
    "reward_stdev": "the same",
    "std_reward": "the same",
    "reward/std": "the same",
    "reward_mean_std": "the same",
    "*__min": "bounds of a chart that W&B exports",
    "*__max": "bounds of a chart that W&B exports",
    "eval*": "held-out twin of a training metric",
    "heldout*": "held-out twin of a training metric",
    "held_out*": "held-out twin of a training metric",
    "dev/*": "held-out twin of a training metric",
    "dev_*": "held-out twin of a training metric",
    "test/*": "held-out twin of a training metric",
    "test_*": "held-out twin of a training metric",
    "val-*": "validation",
    "val/*": "validation",
    "validation/*": "validation",
    "epoch": "position in the data",
    "*/epoch": "position in the data",
    "num_tokens": "tokens so far",
    "num_input_tokens_seen": "tokens so far",
    "total_flos": "bookkeeping",
    "train_runtime": "one number for the whole run",
    "train_loss": "mean over the whole run",
    "train_*_per_second": "one number for the whole run",
    "completions/*": "lengths other than the mean",
    "clip_ratio/*": "one side of the clip, or an extreme",
    "cispo_clip_ratio": "clipped importance weights, which is not a clipped ratio",
    "sampling/*": "sampler against trainer, as ratio or extreme",
    "tools/*": "tool use",
    "policy_loss": "without the KL and entropy terms",
    "entropy_coef": "a setting",
    "aux_loss": "mixture-of-experts balance",
    "vespo/*": "a loss's own weights",
    "actor/*": "ppo_kl is to the old policy, not to the reference; pg_loss is a part of the loss",
    "critic/*": "spread of scores, rewards, advantages, returns; signed, not absolute",
    "response_length/*": "extremes",
    "response_length_non_aborted/*": "without empty responses",
    "response/*": "empty responses",
    "prompt_length/*": "prompts",
    "num_turns/*": "turns",
    "tool_call_counts/*": "tool use",
    "timing*": "seconds of one part",
    "profiling/*": "seconds of one part",
    "perf/*": "speed and memory",
    "performance/*": "speed and memory",
    "global_seqlen/*": "load balance",
    "training/*": "rollout_probs_diff is between probabilities, not log-probs",
    "rollout_corr/*": "importance weights",
    "mismatch_kl*": "sampler against trainer, not against the reference",
    "masked_mismatch_kl*": "sampler against trainer",
    "unmasked_mismatch_kl*": "sampler against trainer",
    "is_masked*": "importance-weight mask",
    "importance_ratio*": "importance weights",
    "kl_ent_ratio*": "a quotient",
    "seq_len/*": "prompt and completion together",
    "seq_length": "prompt and completion together",
    "prompt_len/*": "prompts",
    "completion_len/*": "extremes",
    "is_truncated/*": "extremes",
    "reward/*": "pass@k and parts",
    "batch/*": "solve_none and solve_all leave out groups that are equal in between",
    "progress/*": "counters",
    "optim/*": "optimizer",
    "loss/*": "extremes and advantages",
    "entropy/*": "extremes",
    "metrics/*": "an environment's own metric",
    "agg/*": "prime-rl's per-rollout statistics",
    "all/*": "prime-rl's per-rollout statistics",
    "*/all/*": "prime-rl's per-rollout statistics of one environment",
    "*/effective/*": "without filtered rollouts",
    "masked_advantage_*": "prime-rl: advantages of tokens that the ratio leaves out",
    "off_policy/*": "how old the sampler's weights are",
    "effective/*": "without filtered rollouts",
    "time/*": "seconds of one part",
    "inference/*": "the sampler's load",
    "system/*": "machine",
    "policy/*": "optimizer and ratio statistics",
    "generate/*": "lengths other than the mean",
    "async/*": "staleness",
    "trainer/*": "counters",
    "trajectories/*": "counters",
    "token_mult_prob_error": "NeMo-RL: mean of exp |gap|, not the gap",
    "gen_kl_error": "sampler against trainer",
    "generation_kl_error": "sampler against trainer",
    "policy_kl_error": "sampler against trainer",
    "js_divergence_error": "sampler against trainer",
    "probs_ratio*": "mean ratio",
    "sampling_importance_ratio": "mean ratio",
    "*_seq_mult_prob_error*": "NeMo-RL: sampler against trainer, by sequence",
    "num_masked_seqs_by_logprob_error": "sequences that are left out of the loss",
    "masked_correct_pct": "sequences that are left out of the loss",
    "baseline_reward/*": "NeMo-RL: groups that are all 0, all 1, or between, in percent",
    "advantages/*": "signed",
    "total_turns": "turns",
    "*_turns_per_sample": "turns",
    "max_turns_reached_rate": "turns",
    "natural_termination_rate": "turns",
    "global_valid_*": "counters",
    "num_valid_samples": "counters",
    "total_num_tokens": "prompt and completion together",
    "mean_prompt_length": "prompts",
    "positive_nll_loss": "a part of the loss",
    "return": "OpenRLHF: reward less KL penalty",
    "total_length": "prompt and completion together",
    "ppo_kl": "to the old policy, not to the reference",
    "vllm_kl": "sampler against trainer",
    "is_filter_ratio": "importance-weight mask",
    "logprobs_diff": "OpenRLHF: policy less reference, signed, which is no KL by token",
    "response_clip_ratio": "OpenRLHF: prompt and response together fill the context",
    "dynamic_filtering_pass_rate": "groups that were kept",
    "rollout/reward_mean": "OpenRLHF: the same as `reward`",
    "rollout/response_length_mean": "OpenRLHF: the same as `response_length`",
    "rollout/reward_std": "over the batch",
    "rollout/truncated_rate": "OpenRLHF: the same as `truncated`",
    "rollout/num_samples": "counters",
    "entropy_loss": "may hold its coefficient",
    "debug/*": "advantage means, context lengths; ratio_off_max is |ratio - 1|, not a log",
    "lora/*": "adapter weights",
    "objective/*": "TRL's PPO: sums over a completion, rewards less the KL penalty",
    "episode": "episodes so far",
    "*tokens_per_s*": "speed",
    "*throughput*": "speed",
    "wall_time*": "time since the run began",
    "_runtime": "seconds since the run began",
    "runtime": "seconds since the run began",
    "elapsed_seconds": "seconds since the run began",
    "_wandb*": "bookkeeping of W&B",
    "approx_kl": "to the old policy, not to the reference",
    "approxkl": "to the old policy, not to the reference",
    "akl": "to the old policy, not to the reference",
    "kl_loss": "may hold its coefficient",
    "kl_coef": "a setting",
    "beta": "a setting",
    "temperature": "a setting",
    "clip_range*": "a setting",
    "pg_loss": "a part of the loss",
    "policy_grad*_loss": "a part of the loss",
    "actor_loss": "a part of the loss",
    "value_loss": "of a value head",
    "vf_loss": "of a value head",
    "critic_loss": "of a value head",
    "*explained_var*": "of a value head",
    "*staleness*": "how old the sampler's weights are",
    "*tool*fail*": "tool use",
    "*tool*error*": "tool use",
    "*tool_call*": "tool use",
    "num_turns*": "turns",
    "mean_turns": "turns",
    "ppo/*": "TRL before 0.12",
    "env/reward_*": "spread and distribution",
    "env/all/*": "tinker-cookbook's statistics",
    "tokens/*": "lengths",
    "losses/*": "parts of the loss",
    "values/*": "of a value head",
    "returns/*": "rewards less the KL penalty",
    "*_actor/*": "AReaL's statistics",
    "rollout/advantages": "slime: signed",
    "rollout/*log_probs": "slime",
    "rollout/returns": "slime: with the KL penalty",
    "rollout/rewards": "slime: less the mean of their group",
    "rollout/total_lengths": "prompt and completion together",
    "*gpu*mem*": "memory",
    "memory*": "memory",
    "train_speed*": "speed",
    "samples_per_second": "speed",
    "steps_per_second": "speed",
    "elapsed_time": "time since the run began",
    "remaining_time": "time that is left",
    "percentage": "position in the run",
    "validation_loss": "of the evaluation",
}
"""Names that are known and fill no column -> why not. They stay in `metrics`."""

FOLDERS = frozenset(
    {
        *("policy/*", "optim/*", "rollout/reward_mean"),
        *("rollout/response_length_mean", "rollout/truncated_rate"),
    }
)
"""Those of them that are one trainer's, and that others use for anything: the words of a name count
there, where no other name is taken for the column."""
