from pathlib import Path

import pytest

from flatline.config import RunConfig, load_config, prompts_per_step
from flatline.errors import ConfigError

CONFIGS = Path(__file__).parent.parent / "configs"


def refusal(**changes) -> str:
    with pytest.raises(ConfigError) as caught:
        RunConfig(**changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "processes", "prompts"),
    [
        ({"batch_size": 2, "gradient_accumulation_steps": 16}, 1, 4),
        ({"batch_size": 8}, 1, 1),
        ({"batch_size": 16, "gradient_accumulation_steps": 8}, 3, 48),
    ],
)
def test_prompts_of_a_step_follow_from_the_sizes(sizes, processes, prompts):
    assert prompts_per_step(RunConfig(**sizes), processes) == prompts


def test_a_batch_that_is_no_whole_group_says_what_to_type():
    with pytest.raises(ConfigError, match="--gradient-accumulation-steps 2"):
        prompts_per_step(RunConfig(batch_size=12))


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 3e-3),
        ({"peft": False}, 6e-4),
        ({"model": "some/model"}, 1e-5),
        ({"model": "some/model", "peft": False}, 1e-6),
        ({"learning_rate": 0.0}, 0.0),
    ],
)
def test_the_learning_rate_suits_the_model_unless_it_is_given(changes, rate):
    assert RunConfig(**changes).rate == rate


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_type": "ppo"}, "dr_grpo"),
        ({"task": "chess"}, "musique"),
        ({"temperature": 0.0}, "above 0"),
        ({"learning_rate": float("inf")}, "--learning-rate"),
        ({"output_dir": ""}, "--output-dir is empty"),
        ({"task": "gsm8k", "noise": 0.5}, "only musique"),
        ({"num_iterations": 2, "save_steps": 3}, "multiple of 2"),
        ({"warmup_steps": 5}, "constant_with_warmup"),
        ({"engine": "vllm-server", "max_prompt_length": 99}, "--max-model-len"),
    ],
)
def test_what_cannot_be_honoured_is_refused(changes, words):
    assert words in refusal(**changes)


def test_an_unknown_key_of_a_file_is_an_error_that_names_near_ones(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("max_step = 3\n")
    with pytest.raises(ConfigError, match="max_steps"):
        load_config(file)


def test_a_file_is_read_and_flags_go_before_it(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('task = "toolmath"\nmax_steps = 3\nseed = 4\n')
    assert load_config(file, seed=5) == RunConfig(task="toolmath", max_steps=3, seed=5)


@pytest.mark.parametrize("text", ["task = ", "\x00"])
def test_a_broken_file_is_named(tmp_path, text):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(file)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.toml")), ids=lambda file: file.name)
def test_the_shipped_configs_are_valid(file):
    assert prompts_per_step(load_config(file), processes=1) > 0
