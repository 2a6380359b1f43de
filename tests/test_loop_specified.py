"""A loop that says what it asks for is held against it: advantages and loss."""

from types import SimpleNamespace

import pytest
import torch

from flatline.live.loop.departure import examine

SETTINGS = {"loss_type": "grpo", "scale_rewards": "group", "epsilon": 0.2, "beta": 0.04}


def advantages_of(rewards):
    grouped = rewards.view(-1, 4)
    centred = grouped - grouped.mean(1, keepdim=True)
    return (centred / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)


def batch(advantages=advantages_of):
    torch.manual_seed(0)
    rewards = torch.tensor([1.0, 0, 0, 1.2, 1.2, 1.2, 1.2, 1.2])
    trained = torch.zeros(8, 9, dtype=torch.bool)
    trained[:, 4:] = True
    trained[::2, 7:] = False
    logps = -torch.rand(8, 8)
    return {
        "ids": torch.ones(8, 9, dtype=torch.long),
        "trained": trained,
        "rewards": rewards,
        "advantages": advantages(rewards),
        "old": logps,
        "reference": logps,
    }


def loss_of(batch, new, *, clip=0.2, kl=0.04, sign=1.0, mean=True):
    advantages, mask = batch["advantages"][:, None], batch["trained"][:, 1:]
    ratio = (new - batch["old"]).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    away = batch["reference"] - new
    loss = kl * (away.exp() - away - 1) - sign * gain
    rows = (loss * mask).sum(1) / mask.sum(1)
    return rows.mean() if mean else rows.sum()


def found(settings=SETTINGS, advantages=advantages_of, passes=1, **changes):
    loop = SimpleNamespace(
        scored=lambda one: one["old"], loss=lambda one, new: loss_of(one, new, **changes)
    )
    return examine(loop, settings, [batch(advantages)] * passes, 4)


def departing(*args, **kwargs):
    return [stage for stage, one in found(*args, **kwargs).items() if one.departs]


def test_a_loss_and_advantages_as_asked_depart_nowhere():
    assert departing() == []
    assert departing(passes=2) == [], "passes may be summed or averaged: nobody said which"


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"clip": 0.3}, "loss"),
        ({"kl": -0.04}, "ratio and KL"),
        ({"kl": 0.0}, "ratio and KL"),
        ({"sign": -1.0, "kl": 0.0}, "ratio and KL"),
        ({"mean": False}, "loss"),
    ],
)
def test_another_loss_than_asked_for_departs(changes, stage):
    assert departing(**changes) == [stage]


def test_rewards_that_are_all_alike_are_no_departure_by_the_rounding_of_their_mean():
    assert departing() == []
    assert departing(advantages=lambda rewards: rewards) == ["advantages"]


def test_what_the_settings_do_not_say_is_unknown():
    told = found({"beta": 0.04})
    assert all(one.departs is None for one in told.values())
    told = found({"loss_type": "grpo", "beta": 0.04})
    assert "`epsilon`" in told["loss"].text and told["advantages"].departs is None
    told = found({**SETTINGS, "loss_type": "dr_grpo"})
    assert "`max_completion_length`" in told["loss"].text
