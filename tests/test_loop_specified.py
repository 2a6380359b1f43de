"""A loop that says what it asks for is held against it: advantages and loss."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flatline.errors import ConfigError
from flatline.live.loop.agree import refuse_other_logps
from flatline.live.loop.departure import examine, lines
from flatline.live.loop.stated import judge_settings
from flatline.live.stage_found import departs

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


def each_token(new, old, mask):
    return (new - old).exp()


def gspo_token(new, old, mask):
    """The ratio of the mean token, with the gradient of each token alone."""
    mean = ((new - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    return mean.detach().exp() * (new - new.detach()).exp()


def loss_of(
    batch, new, *, clip=0.2, clip_above=None, kl=0.04, sign=1.0, mean=True, ratio_of=each_token
):
    advantages, mask = batch["advantages"][:, None], batch["trained"][:, 1:]
    ratio = ratio_of(new, batch["old"], mask)
    clipped = ratio.clamp(1 - clip, 1 + (clip if clip_above is None else clip_above))
    gain = torch.minimum(ratio * advantages, clipped * advantages)
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
        ({"clip_above": 0.28}, "loss"),
        ({"advantages": lambda rewards: rewards}, "advantages"),
    ],
)
def test_another_loss_than_asked_for_departs(changes, stage):
    assert departing(**changes) == [stage]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_constant_in_the_loss_that_no_gradient_has_is_a_note_and_no_alarm(passes):
    def shifted(one, new):
        return loss_of(one, new) + 0.04

    loop = SimpleNamespace(scored=lambda one: one["old"], loss=shifted)
    told = examine(loop, SETTINGS, [batch()] * passes, 4)
    assert told["loss"].departs is None and told["loss"].added
    assert "off by a constant, 0.04," in told["loss"].text
    assert told["ratio and KL"].departs is False
    loop.loss = lambda one, new: loss_of(one, new) + 0.04 * (new - one["old"]).detach().abs().mean()
    assert examine(loop, SETTINGS, [batch()], 4)["loss"].departs, "another number elsewhere"


def test_numbers_that_the_settings_state_are_held_against_what_the_loop_has():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)  # begins with 0
    config = SimpleNamespace(r=8, lora_alpha=16)
    model = SimpleNamespace(peft_config={"default": config})

    def judged(**settings):
        loop = SimpleNamespace(settings=settings, optimizer=optimizer, model=model)
        return judge_settings(loop)

    as_it_is = {"learning_rate": 1e-3, "weight_decay": 0.1, "lora": {"r": 8, "alpha": 16}}
    assert judged() is None and judged(**as_it_is) is None
    assert judged(beta=0.1, lora=None) is None
    told = judged(learning_rate=1e-4)
    assert told.stage == "update" and "`learning_rate` 0.0001; the optimizer has 0.001" in told.text
    assert judged(weight_decay=0.0).stage == "update"
    assert judged(lora={"r": 8, "alpha": 32}).stage == "log-probs"


@pytest.mark.parametrize("above", [0.28, 0.0])
def test_a_clip_of_another_width_above_is_held_against_its_own_width(above):
    assert departing({**SETTINGS, "epsilon_high": above}, clip_above=above) == []
    assert departing({**SETTINGS, "epsilon_high": above}) == ["loss"]


def test_gspo_token_is_told_from_a_ratio_of_each_token():
    asked = {**SETTINGS, "importance_sampling_level": "sequence_token"}
    assert departing(asked, ratio_of=gspo_token) == []
    assert departing(asked, ratio_of=lambda *given: gspo_token(*given) * 0.5) != []
    assert departing(ratio_of=gspo_token) == ["ratio and KL"]


def test_what_the_settings_do_not_say_is_unknown():
    told = found({"beta": 0.04})
    assert all(one.departs is None for one in told.values())
    told = found({"loss_type": "grpo", "beta": 0.04})
    assert "`epsilon`" in told["loss"].text and told["advantages"].departs is None
    told = found({**SETTINGS, "loss_type": "dr_grpo"})
    assert "`max_completion_length`" in told["loss"].text


def mask_of(completions):
    ended = (completions == 0).int()
    return ended.cumsum(1) - ended != 0


def sampled(prompts):
    ids = torch.tensor([[5, 6, 7, 0, 0], [5, 6, 0, 0, 0]])
    rewards = torch.tensor([1.0, 0.0])
    mask = mask_of(ids[:, 1:])
    return [
        {
            "ids": ids,
            "trained": torch.cat([torch.zeros(2, 1).bool(), mask], dim=1),
            "rewards": rewards,
            "advantages": rewards - rewards.mean(),
        }
    ]


@pytest.mark.skipif(sys.gettrace() is not None, reason="something follows the code already")
def test_a_wrong_mask_is_traced_to_who_made_it_through_a_batch_of_many_things():
    written = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    played = SimpleNamespace(inputs={"completion_mask": written, "tool_mask": 1 - written})
    loop = SimpleNamespace(batches=sampled, prompts=["a"])
    where = lines(loop, {}, [], departs("mask", "so"), played)
    assert where[0].function == "mask_of"
    assert "return ended.cumsum(1) - ended != 0" in [place.source for place in where]


@pytest.mark.skipif(sys.gettrace() is not None, reason="something follows the code already")
def test_tokens_that_a_right_mask_does_not_name_are_traced_to_the_loss():
    def on_padding(given, new):
        mask = given["trained"][:, 1:]
        spread = new * given["advantages"][:, None]
        rows = spread.sum(1) / mask.sum(1)
        return -rows.mean()

    mask = batch()["trained"][:, 1:].long()
    played = SimpleNamespace(inputs={"completion_mask": mask, "tool_mask": mask})
    loop = SimpleNamespace(scored=lambda one: one["old"], loss=on_padding, prompts=["a"])
    where = lines(loop, SETTINGS, [batch()], departs("mask", "so"), played)
    assert {place.function.rpartition(".")[2] for place in where} == {"on_padding"}


def test_two_prompts_may_be_answered_in_the_same_words():
    said = (7, 8)
    rows = [{"ids": np.array(said), "trainer": np.array(logps)} for logps in ([-1, -2], [-3, -4.0])]
    given = [row["trainer"] for row in rows]
    refuse_other_logps(rows, [said, said], given[::-1])
    with pytest.raises(ConfigError, match=r"gives -5\.000 for a token"):
        refuse_other_logps(rows, [said, said], [given[0], np.array([-3.0, -5.0])])
