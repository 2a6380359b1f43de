"""What columns are called in other people's logs: which names fill ours, and which none."""

import pytest

from flatline.trace.importers.aliases import CAVEATS, COLUMNS, KEPT, STEP
from flatline.trace.importers.resolve import plain, resolve
from flatline.trace.importers.settings import NAMES
from flatline.trace.schema import STEPS
from flatline.trace.settings import SETTINGS

PROMISED = {name for names in COLUMNS.values() for name in names}
FILLS = {
    "reward": (
        "reward train/reward critic/score/mean reward/avg_raw_reward rollout/raw_reward rm_score "
        "env/all/reward/total train/rm_score_mean ret charts/episodic_return env.mean_score rew "
        "rew_avg return_avg r_mean avg_r R rollout/reward_mean rollout/mean_score task_score "
        "env_reward total_reward AvgReward meanReward rew/mean ep_rew"
    ),
    "reward_std_within": "debug/reward_std train/debug/reward_std",
    "zero_std_share": (
        "frac_reward_zero_std frac_groups_same groups_all_same groups_zero_std zero_var_groups "
        "dead_frac"
    ),
    "logprob_gap": "sampling/sampling_logp_difference/mean",
    "clip_share": (
        "actor/pg_clipfrac train_clip_fraction clip_pct clipf clip_rate policy/ratio_clip_frac"
    ),
    "kl": (
        "actor/kl_loss pol_kl kl_pol kl_div kl_avg kl_vs_ref refkl kl_per_tok ref_kl_div "
        "policy/kl_ref meanKL"
    ),
    "entropy": (
        "ent_mean pol_ent entr entropy_avg tok_ent ent_per_tok policy/entropy actor_entropy"
    ),
    "grad_norm": (
        "optim/grad_norm ppo_actor/update/grad_norm g_norm grad_l2 norm_grad grad_norm_avg gnorm "
        "gnorm/mean gradNorm opt/gnorm"
    ),
    "learning_rate": (
        "lrate step_lr opt/lr cur_lr lr_now sched_lr policy/lr pol_lr lr/actor "
        "current_learning_rate"
    ),
    "completion_length": (
        "len_avg avg_len length_mean ans_len comp_len gen_toks tok_per_resp rollout/resp_len "
        "rollout/resp_tokens_mean"
    ),
    "truncated_share": (
        "completions/clipped_ratio trunc_rate pct_cut rollout/truncated_frac hit_max "
        "frac_at_max_len cut_off"
    ),
    "heldout_reward": "eval/reward val-core/gsm8k/reward/mean@1",
    "seconds": "sys/step_seconds dt_step secs_per_step step_s",
    "seconds_sampling": "timing_s/gen",
}
OF_WORDS = [
    ("loss", "Training Loss"),
    ("reward", "Mean Reward"),
    ("reward", "run-3 - train/reward"),  # a chart that W&B exports
    ("completion_length", "Completions / mean_length"),  # a table of Unsloth's in a notebook
]
KNOWN_BUT_NONE = (
    "reward_std actor/ppo_kl mismatch_kl/mean critic/advantages/max token_mult_prob_error "
    "training/rollout_probs_diff_mean debug/ratio_off_max rewards/accuracy/mean rewards/accuracy "
    "eval_rewards/accuracy/mean train_loss seq_len/mean train_reward_std approx_kl kl_loss "
    "test_accuracy max_staleness"
)
NONE = (
    "heldout/rm_score format_reward rm_score_std score_sd_in_group returns/mean reward_scale "
    "kl_reward eval_score_mean judge_score same_prompts_seen "
    "rew_std reward_format r_std val_rew eval_len dev_kl ent_coef entropy_bonus kl_coef kl_old "
    "critic_lr lr_scale lr_min grad_clip grad_std len_max prompt_len_avg val_len_avg clip_range "
    "len_std rew_max rew_p90 kl_target policy/approx_kl akl reward_model_lr val_pass ret_sd Rsd r "
    "h policy/loss clipped_frac time_gen length_penalty eval/policy/kl_ref reward_ema "
    "policy_ratio_pct tool_success_pct reward_std_pct tokens_per_s prompt_tokens grad_clip_frac "
    "steps_per_s eval_pay_pct"
)

KNOWN = [*KNOWN_BUT_NONE.split(), "run-3 - train/reward__MAX"]


def test_the_table_of_names_is_sound():
    assert set(COLUMNS) <= set(STEPS.names) - {"step", "metrics"}
    assert set(CAVEATS) <= PROMISED
    assert set(NAMES) <= set(SETTINGS)


def test_no_name_is_promised_to_two_columns():
    names = [name for names in (*COLUMNS.values(), STEP) for name in names]
    assert len(names) == len(set(names))


def test_names_are_written_as_they_are_compared():
    for name in [*KEPT, *CAVEATS, *PROMISED, *STEP]:
        assert plain(name) == name
    assert plain("eval.gsm_plus_acc") == "eval/gsm_plus_acc"


@pytest.mark.parametrize(
    ("column", "name"),
    [*OF_WORDS, *((column, name) for column, names in FILLS.items() for name in names.split())],
)
def test_a_name_fills_its_column(column, name):
    assert resolve([name, "other"]).aliases == {column: name}


@pytest.mark.parametrize(
    "name", [*KNOWN_BUT_NONE.split(), *NONE.split(), "run-3 - train/reward__MAX"]
)
def test_what_only_resembles_a_column_fills_none(name):
    found = resolve([name, "other"])
    assert found.aliases == {}
    assert name not in KNOWN or found.unrecognised == ["other"]


@pytest.mark.parametrize(
    ("names", "aliases", "note"),
    [
        (["critic/rewards/mean", "critic/score/mean"], {"reward": "critic/score/mean"},
         "`reward` is 'critic/score/mean', not 'critic/rewards/mean'."),
        (["critic/rewards/mean"], {"reward": "critic/rewards/mean"}, "use_kl_in_reward"),
        (["val-core/gsm8k/reward/mean@1", "val-core/math/reward/mean@1"], {}, "left empty"),
        (["rm_score", "rm_score_std"], {"reward": "rm_score"}, "by the words of its name"),
        (["rm_score", "task_return"], {}, ""),
        # a folder of one trainer hides no names of another
        (["rollout/reward_mean", "policy/lr", "policy/kl_ref", "policy/policy_kl", "reward"],
         {"reward": "reward", "kl": "policy/policy_kl", "learning_rate": "policy/lr"}, ""),
    ],
)  # fmt: skip
def test_which_of_several_names_is_taken_is_told(names, aliases, note):
    found = resolve(names)
    assert found.aliases == aliases
    assert not note or any(note in one for one in found.notes)
