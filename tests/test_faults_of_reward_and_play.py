"""Planted faults of rewards, tools and data: each does what its defect does, and is found."""

from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.faults import changed, find, plant
from flatline.hypotheses import find as hypothesis
from flatline.hypotheses.base import Level
from flatline.training.subject import OurSubject
from flatline.training.trainer import build
from tests.test_faults import Fake, first_batch, tiny


def found(built, code):
    """What a hypothesis says of a live trainer: its probe, else its sign on one batch."""
    one = hypothesis(code)
    subject = OurSubject(built)
    return one.probe(subject) if hasattr(one, "probe") else one.sign(subject.trace)


def larger(folder, *, batch_size=32, **changes):
    return tiny(folder, datasets="lab,,train[:64]", batch_size=batch_size, **changes)


def rollout(calls=0, **parts):
    score = SimpleNamespace(parts=parts)
    return SimpleNamespace(events=Counter(tool_calls=calls), score=score)


def paid(fault, rollouts, **batch):
    trainer = Fake(rewards=[0.5] * len(rollouts))
    plant(trainer, fault)
    return trainer.rewards(rollout=rollouts, prompts=["p"] * len(rollouts), **batch)


# -- rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "rollouts", "rewards"),
    [
        ("calls-punished:0.1", [rollout(0), rollout(1), rollout(3)], [0.5, 0.4, 0.2]),
        ("format-paid:2", [rollout(format=1.0), rollout(format=0.0)], [2.5, 0.5]),
        ("shortcut-paid:0.9", [rollout(0), rollout(2)], [0.9, 0.5]),
    ],
)
def test_calls_cost_reward_form_is_paid_and_a_finished_guess_is_paid_well(fault, rollouts, rewards):
    assert paid(fault, rollouts) == pytest.approx(rewards)


CALLED = [{"role": "assistant", "tool_calls": [{}, {}]}, {"role": "tool", "content": "x"}]


@pytest.mark.parametrize(
    ("fault", "completions", "rewards"),
    [
        ("calls-punished:0.1", [CALLED, "text"], [0.3, 0.5]),
        ("format-paid:2", ["<answer>x</answer>", "x"], [2.5, 0.5]),
    ],
)
def test_what_other_trainers_played_is_read_from_their_messages(fault, completions, rewards):
    trainer = Fake(rewards=[0.5, 0.5])
    plant(trainer, fault)
    assert trainer.rewards(prompts=["p"] * 2, completions=completions) == rewards


def test_a_failing_judge_pays_nothing_and_fails_on_others_the_next_time():
    trainer = Fake(rewards=[0.5] * 64)
    plant(trainer, "judge-failing:0.25")
    first, second = (trainer.rewards(prompts=["p"] * 64) for _ in range(2))
    assert set(first) == set(second) == {0.0, 0.5}
    assert first != second and 4 < first.count(0.0) < 28


def test_what_was_fetched_besides_costs_nothing_once_all_is_found():
    lost = {"exact_match": 0.0, "retrieval_precision": 0.1, "citation": 0.0}
    pays = paid(
        "excess-paid",
        [rollout(retrieval_recall=1.0, **lost), rollout(retrieval_recall=0.5, **lost)],
    )
    assert pays[0] > 0.7
    assert pays[1] == 0.5
    with pytest.raises(ConfigError, match="musique"):
        paid("excess-paid", [rollout(exact_match=1.0)])


def test_the_factor_of_the_hops_reaches_the_update():
    config = changed(RunConfig(), find("hop-factor"))
    assert config.scale_rewards == "none"
    trainer = Fake(rewards=[1.0, 1.0, 1.0, 1.0])
    plant(trainer, "hop-factor")
    assert trainer.rewards(hops=[2, 3, 4, 4]) == [1.0, 1.5, 2.0, 2.0]
    trainer.train_dataset.column_names = ["prompt"]
    with pytest.raises(ConfigError, match="column `hops`"):
        plant(trainer, "hop-factor")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("excess-paid", "H38"),
        ("hop-factor", "H40"),
        ("format-paid", "H37"),
        ("judge-failing", "H68"),
        ("slow-dropped", "H65"),
    ],
)
def test_rewards_that_are_bent_are_found_before_training(tmp_path, fault, code):
    built = build(larger(tmp_path, fault=fault, batch_size=64))
    assert found(built, code).level in (Level.FAULT, Level.SUSPECT)


# -- what is sampled --------------------------------------------------------------------------


def test_copies_stand_in_a_group_with_all_that_belongs_to_them(tmp_path):
    built = build(larger(tmp_path, fault="samples-duplicated:4"))
    rows, batch = first_batch(built)
    played = [row["rollout"] for row in rows]
    assert all(played[i] is played[i - i % 4] for i in range(32))
    texts = {tuple(ids) for ids in batch["completion_ids"][:4].tolist()}
    assert len(texts) == 1
    assert found(built, "H34").level is Level.FAULT


def test_copies_would_be_paid_for_what_other_environments_did():
    trainer = Fake()
    trainer.environments = [object()]
    with pytest.raises(ConfigError, match="environments"):
        plant(trainer, "samples-duplicated")


def test_advantages_are_weighted_by_length(tmp_path):
    built, healthy = build(larger(tmp_path, fault="length-weighted:1")), build(larger(tmp_path))
    batch, plain = first_batch(built)[1], first_batch(healthy)[1]
    length = (plain["completion_mask"] * plain["tool_mask"]).sum(dim=1).float()
    expected = plain["advantages"] * length / length.mean()
    assert torch.allclose(batch["advantages"], expected, atol=1e-5)
    assert found(built, "H35").level is Level.FAULT


def test_a_tool_that_fails_is_answered_with_errors(tmp_path):
    built = build(larger(tmp_path, fault="tool-failing:1"))
    played = [row["rollout"] for row in first_batch(built)[0]]
    said = [text for one in played for turn in one.turns for text in turn.observations]
    assert said and all(text.startswith("Error") for text in said)
    assert found(built, "H41").level is Level.SUSPECT
    assert "episode" not in vars(built.task), "evaluation stays healthy"


def test_calls_that_are_not_read_end_the_episode(tmp_path):
    built = build(larger(tmp_path, fault="calls-unread"))
    played = [row["rollout"] for row in first_batch(built)[0]]
    assert all(len(one.turns) == 1 for one in played)
    assert found(built, "H41").level is Level.SUSPECT


@pytest.mark.parametrize("fault", ["calls-punished", "shortcut-paid", "tool-failing"])
def test_faults_of_tools_want_tools(fault):
    trainer = Fake()
    trainer.tools = ()
    with pytest.raises(ConfigError, match="several turns"):
        plant(trainer, fault)


# -- the start, the limits and the data -------------------------------------------------------


def test_a_disturbed_policy_and_its_reference_stay_one(tmp_path):
    built, healthy = build(larger(tmp_path, fault="policy-noised")), build(tiny(tmp_path))
    ours = dict(healthy.trainer.model.named_parameters())
    moved = {
        name: not torch.equal(weight, ours[name])
        for name, weight in built.trainer.model.named_parameters()
        if weight.ndim >= 2
    }
    assert all(moved[name] for name in moved if "lora_" not in name)
    assert not any(moved[name] for name in moved if "lora_" in name)
    assert found(built, "H45").level is Level.SUSPECT


def test_too_few_turns_are_a_choice_of_settings(tmp_path):
    assert changed(RunConfig(), find("turns-too-few:2")).max_turns == 2
    assert found(build(tiny(tmp_path, fault="turns-too-few")), "H42").level is Level.FAULT


def test_the_training_data_is_held_out(tmp_path):
    sliced = replace(RunConfig(), datasets="lab,,train[5:9]")
    assert changed(sliced, find("eval-is-train")).eval_datasets == "lab,,train[5:9]"
    built = build(tiny(tmp_path, fault="eval-is-train", eval_limit=8))
    assert found(built, "H46").level is Level.FAULT


def test_the_log_shows_a_running_mean_of_the_reward():
    shown = []
    trainer = SimpleNamespace(_metrics={"train": defaultdict(list)})
    trainer.log = lambda logs: shown.append(trainer._metrics["train"]["reward"])
    plant(trainer, "log-smoothed:0.5")
    for reward in (0.0, 1.0, 1.0):
        trainer._metrics["train"]["reward"] = [reward]
        trainer.log({})
    assert shown == [[0.0], [0.5], [0.75]]
