"""Experiments: two arms that differ in one field, with the suspected cause taken away in one."""

import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from tests.each import each

from flatline.config import LAB_RATES, USUAL_RATES, RunConfig
from flatline.faults import FAULTS, belonging
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.departure import CODES

PRESET = "verifiers-0.1.3"
BETWEEN_PROCESSES = "H60"
"""What is wrong there is code between processes: no field of a setup takes it away."""
OF_IMAGES = "H67"
"""The tasks of a setup have none."""
EXPERIMENTS = [one for one in HYPOTHESES if one.mechanism]
every_experiment = each("hypothesis", EXPERIMENTS, ids=lambda one: one.id)
SETUPS = {
    "default": {},
    "preset": {"fault": PRESET},
    "beta": {"kl_beta": 0.04},
    "short context": {"max_prompt_length": 512},
    "full": {"peft": False},
    "full through a copy": {"peft": False, "sampler_weights": "copy"},
    "cut": {"top_k": 20, "top_p": 0.95, "min_p": 0.1},
    "dropout": {"lora_dropout": 0.05},
    "slow": {"learning_rate": 1e-6},
    "checkpointing": {"gradient_checkpointing": True},
    "sorted": {"order": "hops"},
}
FIELDS = [
    ("H01", {}, "scale_rewards", "none"),
    ("H03", {"kl_beta": 0.04}, "kl_beta", 0.0),
    ("H04", {"max_prompt_length": 512}, "max_prompt_length", None),
    ("H04", {"max_new_tokens": 50}, "max_new_tokens", 100),
    ("H05", {}, "reward", "exact_match"),
    ("H06", {}, "peft", False),
    ("H06", {"peft": False, "sampler_weights": "copy"}, "sampler_weights", "live"),
    ("H18", {"sampler_weights": "copy"}, "sampler_weights", "live"),
    ("H20", {"bf16": True}, "bf16", False),
    ("H21", {"top_k": 20, "top_p": 0.95}, "top_k", 0),
    ("H21", {"top_p": 0.95, "min_p": 0.1}, "top_p", 1.0),
    ("H21", {"min_p": 0.1}, "min_p", 0.0),
    ("H23", {"lora_dropout": 0.05}, "lora_dropout", 0.0),
    ("H24", {"learning_rate": 1e-6}, "learning_rate", LAB_RATES["lora"]),
    ("H24", {"learning_rate": 1.0, "peft": False}, "learning_rate", LAB_RATES["full"]),
    ("H24", {"learning_rate": 1.0, "model": "m"}, "learning_rate", USUAL_RATES["lora"]),
    ("H26", {"gradient_checkpointing": True}, "gradient_checkpointing", False),
    ("H27", {"max_grad_norm": 0.01}, "max_grad_norm", 1.0),
    ("H29", {"epsilon": 0.01, "num_iterations": 2}, "epsilon", 0.2),
    ("H30", {"temperature": 0.5}, "temperature", 1.0),
    ("H31", {"kl_beta": 0.04}, "kl_beta", 0.0),
    ("H32", {}, "num_generations", 16),
    ("H34", {"temperature": 0.5}, "temperature", 1.0),
    ("H35", {"loss_type": "grpo"}, "loss_type", "dapo"),
    ("H35", {"loss_type": "dr_grpo"}, "loss_type", "grpo"),
    ("H36", {"reward": "exact_match"}, "reward", "combined"),
    ("H37", {}, "reward", "exact_match"),
    ("H42", {"max_turns": 4}, "max_turns", 8),
    ("H44", {"order": "hops"}, "order", "shuffled"),
    ("H44", {"order": "file"}, "order", "shuffled"),
    ("H45", {}, "retriever", "golden"),
]
NOTHING_TO_TAKE_AWAY = [
    ("H01", {"scale_rewards": "none"}),
    ("H01", {"scale_rewards": "batch"}),
    ("H03", {}),
    ("H05", {"reward": "format"}),
    ("H05", {"reward": "exact_match"}),
    ("H06", {"peft": False}),
    ("H21", {}),
    ("H21", {"temperature": 0.5}),
    ("H23", {}),
    ("H23", {"lora_dropout": 0.1, "peft": False}),
    ("H24", {}),
    ("H24", {"learning_rate": LAB_RATES["lora"]}),
    ("H26", {}),
    ("H27", {"max_grad_norm": 0.0}),
    ("H29", {"epsilon": 0.01}),  # with one pass it changes nothing
    ("H32", {"batch_size": 8}),
    ("H37", {"reward": "format"}),
    ("H42", {"task": "gsm8k"}),
    ("H44", {}),
    ("H45", {"retriever": "golden"}),
    ("H45", {"task": "toolmath"}),
    *((code, {}) for code in ("H02", "H07", "H08", "H09", "H10", "H11", "H17", "H18", "H20")),
    *((code, {}) for code in ("H27", "H30", "H31", "H33", "H34", "H36", "H39")),
]


def differing(config, arms):
    """Fields in which the treated arm differs from the setup."""
    treated = asdict(replace(config, **arms.change))
    return {name for name, value in asdict(config).items() if treated[name] != value}


def test_every_hypothesis_but_the_ladder_stages_of_a_step_and_processes_has_an_experiment():
    without = [one for one in HYPOTHESES if one not in EXPERIMENTS]
    assert [one.id for one in without] == ["H00", *CODES.values(), BETWEEN_PROCESSES, OF_IMAGES]
    assert not {one.id for one in without} & {fault.hypothesis for fault in FAULTS}
    assert not any(
        one.experiment(RunConfig(**setup)) for one in without for setup in SETUPS.values()
    )
    assert all(one.mechanism.endswith(".") for one in EXPERIMENTS)


@every_experiment
@each("setup", SETUPS.values(), ids=SETUPS)
def test_arms_differ_in_one_field_and_say_what_must_flip(hypothesis, setup):
    config = RunConfig(**setup)
    arms = hypothesis.experiment(config)
    if arms is None:
        return
    assert differing(config, arms) == {arms.factor} == set(arms.change)
    assert arms.control != arms.treated
    assert arms.mechanism == hypothesis.mechanism


@each("fault", FAULTS, ids=lambda one: one.name)
def test_a_planted_fault_is_taken_out_and_goes_before_any_setting(fault):
    config = RunConfig(fault=fault.name, kl_beta=0.04, max_prompt_length=512, top_k=20)
    hypothesis = find(fault.hypothesis)
    arms = hypothesis.experiment(config)
    treated = replace(config, **arms.change)
    assert differing(config, arms) == {"fault"}
    assert treated.fault is None
    assert fault.name in arms.control and fault.name in arms.treated


@every_experiment
def test_of_a_preset_only_the_part_of_the_hypothesis_is_taken_out(hypothesis):
    config = RunConfig(fault=PRESET)
    arms = hypothesis.experiment(config)
    theirs = belonging(PRESET, hypothesis.id)
    if not theirs:
        assert arms is None or arms.factor != "fault"
        return
    left = arms.change["fault"]
    assert all(name not in left and name in arms.treated for name in theirs)
    others = [one for one in EXPERIMENTS if one is not hypothesis]
    assert all(belonging(left, one.id) == belonging(PRESET, one.id) for one in others)


@pytest.mark.parametrize(("code", "setup", "factor", "value"), FIELDS)
def test_the_setting_that_is_suspected_is_the_factor(code, setup, factor, value):
    arms = find(code).experiment(RunConfig(**setup))
    assert dict(arms.change) == {factor: value}
    assert type(arms.change[factor]) is type(value)


@pytest.mark.parametrize(("code", "setup"), NOTHING_TO_TAKE_AWAY)
def test_a_setup_that_has_nothing_of_it_has_no_arms(code, setup):
    assert find(code).experiment(RunConfig(**setup)) is None


def test_full_training_keeps_its_own_usual_rate():
    config = RunConfig()
    treated = replace(config, **find("H06").experiment(config).change)
    assert (config.rate, treated.rate) == (LAB_RATES["lora"], LAB_RATES["full"])


def test_a_field_that_another_fault_sets_back_is_no_factor():
    config = RunConfig(kl_beta=0.04, fault="reference-keeps-adapter")
    assert find("H03").experiment(config) is None
    assert find("H03").experiment(replace(config, fault="mask-as-attention")) is not None


def test_arms_of_a_healthy_setup_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from flatline.config import RunConfig\n"
        "from flatline.hypotheses import HYPOTHESES\n"
        "[one.experiment(RunConfig()) for one in HYPOTHESES]"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
