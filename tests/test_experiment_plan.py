import json
from dataclasses import replace
from pathlib import Path

import pytest

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.experiment import (
    Arm,
    Role,
    arms_of,
    expectation,
    load_plan,
    register,
)
from flatline.experiment.commands import rendered
from flatline.experiment.runs import job_of
from tests.experiments import COMMAND, config_plan, plan_of


def plan_between(before, after, **more):
    """A plan whose two arms have these values."""
    arms = (
        Arm(name="as it is", role=Role.CONTROL, config=RunConfig(**before)),
        Arm(name="changed", role=Role.TREATED, config=RunConfig(**after)),
    )
    return plan_of(arms, **more)


def fault_plan(before, after):
    return plan_between({"fault": before}, {"fault": after}, factor="fault")


def test_arms_that_differ_in_two_factors_are_refused_by_their_names():
    with pytest.raises(ConfigError, match=r"lora_r \(8 and 16\)") as error:
        plan_between({"kl_beta": 0.04}, {"kl_beta": 0.0, "lora_r": 16})
    assert "kl_beta (0.04 and 0.0)" in str(error.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "verifiers-0.1.3",
            "generation-prompt-missing+tool-schema-missing+sorted-with-hop-factor",
        ),
        ("kl-sign+kl-heavy", None),  # of one hypothesis
        ("mask-as-attention", "mask-as-attention:0.5"),
    ],
)
def test_the_faults_of_one_hypothesis_or_their_strength_may_differ(before, after):
    assert fault_plan(before, after)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "mask-as-attention+groups-mixed",
            None,
            "several faults: groups-mixed, mask-as-attention",
        ),
        ("kl-sign+groups-mixed", "groups-mixed+kl-sign", "written differently"),
    ],
)
def test_faults_of_several_hypotheses_or_none_may_not_differ(before, after, message):
    with pytest.raises(ConfigError, match=message):
        fault_plan(before, after)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"looks": (1,)}, "one seed says nothing"),
        ({"looks": ()}, "one seed says nothing"),
        ({"looks": (4, 3)}, "must rise"),
        ({"smallest_effect": 0.0}, "must be above 0"),
        ({"alpha": 1.0}, "error rate"),
        ({"name": "../elsewhere"}, "cannot be called"),
        ({"outcome": "accuracy"}, "no outcome"),
        ({"outcome": "metric:"}, "no outcome"),
    ],
)
def test_a_plan_that_could_tell_nothing_cannot_be_made(changes, message):
    with pytest.raises(ConfigError, match=message):
        config_plan(**changes)


def test_arms_need_a_control_a_treated_and_names_of_their_own():
    arms = config_plan().arms
    with pytest.raises(ConfigError, match="one control arm"):
        plan_of(arms[:1])
    with pytest.raises(ConfigError, match="one control arm"):
        plan_of((arms[0], replace(arms[1], role=Role.CONTROL)))
    with pytest.raises(ConfigError, match="Two arms are called"):
        plan_of((arms[0], replace(arms[1], name=arms[0].name)))
    with pytest.raises(ConfigError, match="a config or a command"):
        plan_of((arms[0], replace(arms[1], config=None)))


def test_a_held_out_outcome_without_held_out_problems_is_refused_before_training():
    arms = [replace(a, config=replace(a.config, eval_limit=0)) for a in config_plan().arms]
    with pytest.raises(ConfigError, match="evaluates nothing"):
        plan_of(arms)
    assert plan_of(arms, outcome="reward")


def test_every_treated_arm_takes_its_share_of_the_error_rate():
    _, arms = arms_of(COMMAND, "kl_beta=0.04,0.0,0.001")
    assert plan_of(arms, family=2).rule.family == 4


def test_arms_that_do_the_same_share_their_runs_whatever_they_are_called():
    arm = config_plan().control
    other = Arm(name="other", role=Role.TREATED, config=replace(arm.config, seed=3))
    assert job_of(arm, 1, Path("runs")).folder == job_of(other, 1, Path("runs")).folder
    assert job_of(arm, 1, Path("runs")).folder != job_of(arm, 2, Path("runs")).folder
    assert arm.digest != config_plan().treated[0].digest


def test_a_plan_is_the_same_after_it_was_written_and_read(tmp_path):
    registered = register(config_plan(), tmp_path)
    assert registered.registered
    assert load_plan(tmp_path) == registered
    assert register(config_plan(), tmp_path) == registered


def test_another_plan_under_the_same_name_is_refused_with_what_differs(tmp_path):
    register(config_plan(), tmp_path)
    with pytest.raises(ConfigError, match=r"smallest_effect: 0.05 is registered, 0.01 was asked"):
        register(config_plan(smallest_effect=0.01), tmp_path)


def test_a_plan_that_was_edited_is_refused(tmp_path):
    register(config_plan(), tmp_path)
    path = tmp_path / "plan.json"
    path.write_text(path.read_text().replace('"smallest_effect": 0.05', '"smallest_effect": 0.01'))
    with pytest.raises(ConfigError, match="changed after it was registered"):
        register(config_plan(smallest_effect=0.01), tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 7}'])
def test_a_plan_file_that_is_none_is_an_error_and_not_overwritten(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ConfigError, match=r"plan\.json"):
        register(config_plan(), tmp_path)
    assert (tmp_path / "plan.json").read_text() == text


def test_the_plan_on_disk_has_the_shape_that_other_parts_read(tmp_path):
    register(config_plan(), tmp_path)
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["version"] == 1
    assert found["looks"] == [2, 3]
    assert found["arms"][0]["role"] == "control"
    assert found["arms"][0]["config"]["kl_beta"] == 0.04
    assert len(found["digest"]) == 64


def test_a_command_gives_one_arm_for_each_value_the_first_being_the_control():
    factor, arms = arms_of(COMMAND, "kl_beta=0.04, 0.0")
    assert factor == "kl_beta"
    assert [(arm.role, arm.values) for arm in arms] == [
        (Role.CONTROL, {"kl_beta": "0.04"}),
        (Role.TREATED, {"kl_beta": "0.0"}),
    ]


def test_a_value_is_one_word_whatever_is_in_it():
    values = {"x": "a b; rm -rf / $(date)", "seed": 1}
    words = rendered("python 'my script.py' --x={x} {seed} {{}}", values)
    assert words == ("python", "my script.py", "--x=a b; rm -rf / $(date)", "1", "{}")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python train.py --beta {kl_beta}", "all seeds would be one"),
        ("python train.py --seed {seed}", "all arms would be the same run"),
        ("python train.py {kl_beta} {seed} {lr}", "for which there is no value"),
        ("python train.py {kl_beta.__class__} {seed}", "plain name"),
        ("python train.py {kl_beta!r} {seed}", "plain name"),
        ("python train.py {kl_beta:>10} {seed}", "plain name"),
        ("python train.py {kl_beta {seed}", "cannot be read"),
        ("python 'train.py {kl_beta} {seed}", "cannot be read"),
        ("python train.py {kl_beta} {seed} | tee log", "without a shell"),
        ("A=1 python train.py {kl_beta} {seed}", "env NAME=value"),
        ("no-such-program {kl_beta} {seed}", "no program"),
        ("", "empty"),
    ],
)
def test_a_command_that_could_not_work_is_refused(command, message):
    with pytest.raises(ConfigError, match=message):
        arms_of(command, "kl_beta=0.04,0.0")


@pytest.mark.parametrize(
    "choice", ["kl_beta", "seed=1,2", "kl_beta=1", "kl_beta=1,1", "kl_beta=1,"]
)
def test_a_choice_of_arms_that_compares_nothing_is_refused(choice):
    with pytest.raises(ConfigError, match="--arms"):
        arms_of(COMMAND, choice)


def test_what_to_expect_is_said_before_the_first_run(tmp_path):
    plan = config_plan(looks=(3, 4, 5, 6))
    found = expectation(plan, sd=0.03, seconds_per_run=60, jobs=2)
    assert found.runs == 12
    assert found.seconds == 360
    assert 0 < found.detectable < 1
    assert "At most 12 runs, 6 min" in found.text
