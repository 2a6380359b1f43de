"""Faults of the catalogue's sections A to C: each does what its defect does; all faults that show
on one batch or one step are found by their hypothesis before training."""

from types import SimpleNamespace

import pytest
import torch

from flatline.config import RunConfig
from flatline.diagnosis.checkup import subject_of
from flatline.errors import ConfigError
from flatline.faults import changed, find, plant
from flatline.hypotheses import find as hypothesis
from flatline.hypotheses.base import ALARMS, Level
from flatline.training.trainer import build
from tests.test_faults import Fake, first_batch, tiny

LARGER = {"datasets": "lab,,train[:64]", "batch_size": 32}
LARGEST = {**LARGER, "batch_size": 64}


@pytest.mark.parametrize(
    ("fault", "changes", "code", "level"),
    [
        ("padding-attended", {"batch_size": 64}, "H15", Level.FAULT),
        ("merge-rounded", {}, "H18", Level.SUSPECT),
        ("prefix-cache-stale", {"peft": False}, "H19", Level.SUSPECT),
        ("updates-rounded", {"peft": False}, "H25", Level.SUSPECT),
        ("gradient-clip-low", {}, "H27", Level.SUSPECT),
        ("samples-duplicated:4", LARGER, "H34", Level.FAULT),
        ("length-weighted:1", LARGER, "H35", Level.FAULT),
        ("format-paid", LARGEST, "H37", Level.SUSPECT),
        ("excess-paid", LARGEST, "H38", Level.FAULT),
        ("hop-factor", LARGEST, "H40", Level.SUSPECT),
        ("tool-failing:1", LARGER, "H41", Level.SUSPECT),
        ("calls-unread", LARGER, "H41", Level.SUSPECT),
        ("turns-too-few", {}, "H42", Level.FAULT),
        ("policy-noised", LARGER, "H45", Level.SUSPECT),
        ("eval-is-train", {"eval_limit": 8}, "H46", Level.FAULT),
        ("slow-dropped", LARGEST, "H65", Level.FAULT),
        ("judge-failing", LARGEST, "H68", Level.SUSPECT),
    ],
)
def test_a_planted_fault_is_found_before_training(tmp_path, fault, changes, code, level):
    one = hypothesis(code)
    subject = subject_of(build(tiny(tmp_path, fault=fault, **changes)))
    found = one.probe(subject) if hasattr(one, "probe") else one.sign(subject.trace)
    assert found.level is level


def test_a_sampler_that_is_never_updated_is_no_rounding(tmp_path):
    never = subject_of(build(tiny(tmp_path, fault="sampler-never-updated")))
    assert hypothesis("H18").probe(never).level not in ALARMS, "that is H06's"


def test_losses_that_are_added_up_are_found_by_cutting_the_batch_otherwise(tmp_path):
    sick = subject_of(build(tiny(tmp_path, fault="accumulation-undivided")))
    assert sick.accumulation().ratio == pytest.approx(2.0, rel=1e-3)
    assert hypothesis("H28").probe(sick).level is Level.FAULT
    healthy = subject_of(build(tiny(tmp_path, lora_dropout=0.3)))
    assert healthy.accumulation().ratio == pytest.approx(1.0, rel=1e-3), "dropout or not"


def test_stripped_turns_lose_their_last_words_and_the_last_turn_is_whole():
    trainer = Fake(mask=(1, 1, 1, 1, 1, 0, 1, 1))
    plant(trainer, "earlier-turns-stripped")
    _, ids, mask, _, logprobs, *_ = trainer._generate([None])
    assert ids[0] == [0, 1, 4, 5, 6, 7], "how a turn begins and its end token stay"
    assert mask[0] == [1, 1, 1, 0, 1, 1] and len(logprobs[0]) == 6


def test_the_first_token_of_prompts_is_doubled():
    trainer = Fake()
    plant(trainer, "first-token-doubled:2")
    assert trainer._generate([None])[0] == [[1, 1, 1, 2]]


def test_turns_are_short_in_training_only(tmp_path):
    built = build(tiny(tmp_path, fault="turn-limit-low:4"))
    rows, _ = first_batch(built)
    assert {row["rollout"].finish.value for row in rows} == {"turn_length"}
    assert max(sum(row["rollout"].loss_mask) for row in rows) == 4
    assert built.rollouts.engine.limits.max_new_tokens == 64


def test_sequence_weights_are_capped_logged_and_the_same_for_the_same_tokens(tmp_path):
    built = build(tiny(tmp_path, fault="sequence-weights"))
    batch = first_batch(built)[1]
    again = first_batch(built)[1]
    assert torch.equal(batch["advantages"], again["advantages"])
    logged = built.trainer._metrics["train"]
    assert max(logged["sampling/importance_sampling_ratio/max"]) <= 3.0
    assert logged["sampling/importance_sampling_ratio/mean"][0] < 0.8


def stepped(text: str, start: float = 1.0, by: float = 0.01):
    """A weight after one step of plain descent under a fault of the optimizer."""
    weight = torch.nn.Parameter(torch.tensor([start]))
    made = torch.optim.SGD([weight], lr=1.0)
    trainer = SimpleNamespace(create_optimizer=lambda: made)
    find(text)[0].fault.plant(trainer, find(text)[0].strength)
    optimizer = trainer.create_optimizer()
    weight.grad = torch.tensor([-by])
    optimizer.step()
    return float(weight.detach())


def test_small_updates_are_lost_and_large_ones_arrive():
    assert stepped("updates-rounded:2") == 1.0
    assert stepped("updates-rounded:2", by=0.5) == 1.5
    assert stepped("updates-rounded:23") == pytest.approx(1.01)
    assert stepped("updates-rounded:2", start=1.1) == pytest.approx(1.1), "the start keeps digits"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("learning-rate-high:10", "learning_rate", 3e-2),
        ("kl-sign", "kl_beta", 0.04),
        ("sorted-with-hop-factor", "order", "hops"),
        ("gradient-clip-low", "max_grad_norm", 1e-8),
        ("accumulation-undivided", "gradient_accumulation_steps", 4),
        ("clip-tight", "epsilon", 3e-4),
        ("kl-anchor:0.2", "kl_beta", 0.2),
    ],
)
def test_settings_are_changed_before_the_trainer_is_built(text, name, value):
    assert getattr(changed(RunConfig(), find(text)), name) == pytest.approx(value)


def test_settings_that_already_show_the_fault_are_kept():
    config = RunConfig(gradient_accumulation_steps=2, num_iterations=4)
    assert changed(config, find("accumulation-undivided")) == config


def test_an_entropy_bonus_of_the_wrong_sign_makes_a_step_surer(tmp_path):
    sick, plain = build(tiny(tmp_path, fault="entropy-penalised:2")), build(tiny(tmp_path))
    losses = [
        one.trainer._compute_loss(one.trainer.model, first_batch(one)[1]) for one in (sick, plain)
    ]
    assert float(losses[0].detach()) > float(losses[1].detach()), "entropy costs"
    with pytest.raises(ConfigError, match="no entropy bonus"):
        plant(SimpleNamespace(), "entropy-penalised")


def test_the_pull_of_the_kl_grows_with_beta(tmp_path):
    light, heavy = (
        subject_of(build(tiny(tmp_path, kl_beta=beta))).kl_pull() for beta in (0.04, 0.5)
    )
    assert heavy.ratio == pytest.approx(12.5 * light.ratio, rel=0.05)
    assert heavy.cosine < 0 and light.growth > 8


def test_rounding_is_not_taken_for_the_pull_of_the_kl(tmp_path):
    """A hundredth of such a step is nothing in bf16; what the KL's gradient shows is rounding."""
    eight = {"batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 8}
    small = {"kl_beta": 0.5, "learning_rate": 3e-5, "bf16": True}
    subject = subject_of(build(tiny(tmp_path, datasets="lab,,train[:64]", **eight, **small)))
    assert hypothesis("H31").probe(subject).level not in ALARMS


def test_measuring_around_a_step_leaves_the_trainer_as_it_was(tmp_path):
    built = build(tiny(tmp_path, kl_beta=0.04))
    before = [weight.detach().clone() for weight in built.trainer.model.parameters()]
    subject = subject_of(built)
    subject.stepped_delivery(), subject.accumulation(), subject.kl_pull()
    assert all(map(torch.equal, before, built.trainer.model.parameters()))
    args = built.trainer.args
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (16, 1)
    assert args.max_grad_norm == 1.0 and built.trainer.beta == 0.04
    assert built.trainer.state.global_step == 0
