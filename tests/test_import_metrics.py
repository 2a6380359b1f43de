"""Metrics and settings under the names that each framework gives them."""

import pytest

from flatline.trace.importers import open_log
from flatline.trace.importers.settings import settings_of
from tests import framework_logs as logs

FILLED = {
    "TRL_METRICS": {"reward", "kl", "entropy", "zero_std_share", "clip_share", "logprob_gap"},
    "VERL_METRICS": {"reward", "kl", "entropy", "clip_share", "heldout_reward", "truncated_share"},
    "OPENRLHF_METRICS": {"reward", "kl", "clip_share", "truncated_share", "seconds"},
    "NEMO_RL_METRICS": {"reward", "kl", "entropy", "heldout_reward", "seconds"},
    "SKYRL_METRICS": {"reward", "kl", "entropy", "clip_share", "heldout_reward", "logprob_gap"},
    "PRIME_RL_METRICS": {"reward", "entropy", "truncated_share", "time"},
}
SHARED = {"reward", "grad_norm", "learning_rate", "completion_length"}


@pytest.mark.parametrize("name", FILLED)
def test_every_name_of_a_framework_is_known_and_fills_what_it_means(tmp_path, name):
    names = getattr(logs, name)
    trace = open_log(logs.metrics(tmp_path / "log.jsonl", names, step="step", steps=5))
    assert trace.run["unrecognised"] == []
    assert FILLED[name] | SHARED <= set(trace.run["aliases"])
    assert len(trace.steps["reward"]) == 5


def test_rows_that_say_they_belong_to_no_step_are_left_out_and_told(tmp_path):
    rows = [
        {"step": 1, "reward": 0.5, "producer": "orchestrator"},
        {"step": None, "time": 7.0, "inference/load": 3.0},
        {"step": 2, "reward": 0.6},
    ]
    trace = open_log(logs.write_jsonl(tmp_path / "metrics.jsonl", rows))
    assert trace.steps["reward"].tolist() == [0.5, 0.6]
    assert any(
        "Rows that belong to no step are left out: 1." in note for note in trace.run["notes"]
    )
    assert trace.warnings == []


def test_a_step_of_so_many_is_read_and_the_summary_of_ms_swift_is_no_step(tmp_path):
    rows = [
        {"reward": 0.5, "global_step/max_steps": "1/2", "train_speed(s/it)": 0.9},
        {"reward": 0.6, "global_step/max_steps": "2/2", "train_speed(s/it)": 0.8},
        {"train_loss": 0.1, "global_step/max_steps": "2/2", "train_speed(s/it)": 0.7},
        {"global_step": 2, "log_history": [{"reward": 0.5}], "train_memory": 1.5},
    ]
    trace = open_log(logs.write_jsonl(tmp_path / "logging.jsonl", rows))
    assert trace.steps["reward"].tolist() == [0.5, 0.6]
    assert not any("more than once" in note for note in trace.run["notes"])
    assert trace.warnings == []


def test_the_settings_of_nemo_rl_are_found_where_it_keeps_them():
    config = {
        "grpo": {"num_generations_per_prompt": 16, "num_prompts_per_step": 32, "seed": 42},
        "loss_fn": {"reference_policy_kl_penalty": 0.01, "ratio_clip_min": 0.2},
        "policy": {
            "precision": "bfloat16",
            "max_grad_norm": 1.0,
            "optimizer": {"kwargs": {"lr": 5e-6, "weight_decay": 0.01}},
            "generation": {"backend": "vllm", "temperature": 1.0, "top_p": 0.9, "top_k": None},
        },
    }
    found = settings_of(config)
    assert (found["num_generations"], found["beta"], found["epsilon"]) == (16, 0.01, 0.2)
    assert (found["learning_rate"], found["temperature"], found["top_p"]) == (5e-6, 1.0, 0.9)
    assert (found["bf16"], found["engine"], found["seed"]) == (True, "vllm", 42)


@pytest.mark.parametrize(("use", "beta"), [(True, 0.001), (False, 0.0)])
def test_the_settings_of_skyrl_are_found_and_a_kl_that_is_off_is_zero(use, beta):
    config = {
        "trainer": {"algorithm": {"use_kl_loss": use, "kl_loss_coef": 0.001}, "seed": 1},
        "generator": {"n_samples_per_prompt": 5, "sampling_params": {"temperature": 1.0}},
    }
    found = settings_of(config)
    assert (found["beta"], found["num_generations"], found["seed"]) == (beta, 5, 1)
