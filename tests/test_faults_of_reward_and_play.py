"""Planted faults of rewards, tools and data: each pays and logs what its defect does."""

from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.faults import changed, find, plant
from tests.test_faults import Fake


def rollout(calls=0, **parts):
    score = SimpleNamespace(parts=parts)
    return SimpleNamespace(events=Counter(tool_calls=calls), score=score)


def paid(fault, rollouts, **batch):
    trainer = Fake(rewards=[0.5] * len(rollouts))
    plant(trainer, fault)
    return trainer.rewards(rollout=rollouts, prompts=["p"] * len(rollouts), **batch)


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
    played = [rollout(retrieval_recall=recall, **lost) for recall in (1.0, 0.5)]
    found, half = paid("excess-paid", played)
    assert found > 0.7 and half == 0.5
    with pytest.raises(ConfigError, match="musique"):
        paid("excess-paid", [rollout(exact_match=1.0)])


def test_the_factor_of_the_hops_reaches_the_update():
    assert changed(RunConfig(), find("hop-factor")).scale_rewards == "none"
    trainer = Fake(rewards=[1.0, 1.0, 1.0, 1.0])
    plant(trainer, "hop-factor")
    assert trainer.rewards(hops=[2, 3, 4, 4]) == [1.0, 1.5, 2.0, 2.0]


def test_the_training_data_is_held_out():
    sliced = replace(RunConfig(), datasets="lab,,train[5:9]")
    assert changed(sliced, find("eval-is-train")).eval_datasets == "lab,,train[5:9]"


def test_the_log_shows_a_running_mean_of_the_reward():
    shown = []
    trainer = SimpleNamespace(_metrics={"train": defaultdict(list)})
    trainer.log = lambda logs: shown.append(trainer._metrics["train"]["reward"])
    plant(trainer, "log-smoothed:0.5")
    for reward in (0.0, 1.0, 1.0):
        trainer._metrics["train"]["reward"] = [reward]
        trainer.log({})
    assert shown == [[0.0], [0.5], [0.75]]
