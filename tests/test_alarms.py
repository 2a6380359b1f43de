"""Alarms in training: said at the step, once, everywhere, and the training never notices."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

import flatline
from flatline.alarms import earned
from flatline.alarms.alarm import Alarm
from flatline.alarms.lookout import Lookout
from flatline.alarms.trackers import tell
from flatline.errors import ConfigError
from tests.test_attach import trainer_of

STEPS = 4


@pytest.fixture(autouse=True)
def time_to_look(monkeypatch):
    """Steps of a tiny model are too short to earn a look at each."""
    monkeypatch.setattr(earned, "SHARE", 1e9)


def broken(trainer):
    """Advantages that are 1 too high."""
    inner = trainer._generate_and_score_completions

    def generate(inputs):
        output = inner(inputs)
        output["advantages"] = output["advantages"] + 1.0
        return output

    trainer._generate_and_score_completions = generate
    return trainer


def trained(trainer, folder, alarms=None):
    torch.manual_seed(0)
    flatline.attach(trainer, folder, alarms=alarms)
    trainer.train()
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_a_broken_invariant_is_told_at_the_step_where_it_shows(tmp_path, capfd):
    heard = []
    alarms = flatline.Alarms(heard.append)
    trained(broken(trainer_of(tmp_path, max_steps=STEPS)), tmp_path / "run", alarms)
    assert [one.level for one in heard] == ["fault"]
    assert heard[0].step == 1
    assert heard == alarms.told
    assert capfd.readouterr().err.count(heard[0].title) == 1


@pytest.mark.parametrize("fault", [False, True])
def test_the_trained_weights_are_the_same_bit_for_bit(tmp_path, fault):
    def weights(folder, alarms):
        folder.mkdir()
        trainer = trainer_of(folder, max_steps=STEPS)
        return trained(broken(trainer) if fault else trainer, folder / "run", alarms)

    plain, watched = weights(tmp_path / "a", None), weights(tmp_path / "b", flatline.Alarms())
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_a_fault_can_end_the_run_with_a_checkpoint(tmp_path):
    trainer = broken(trainer_of(tmp_path, max_steps=STEPS))
    trained(trainer, tmp_path / "run", flatline.Alarms(on_fault="stop"))
    assert trainer.state.global_step == 1
    assert [one.name for one in tmp_path.rglob("checkpoint-*")] == ["checkpoint-1"]


def test_a_healthy_run_is_left_in_peace(tmp_path):
    trainer, alarms = trainer_of(tmp_path, max_steps=STEPS), flatline.Alarms(on_fault="stop")
    trained(trainer, tmp_path / "run", alarms)
    assert trainer.state.global_step == STEPS and not alarms.told


def test_it_goes_through_the_callback_too(tmp_path):
    alarms = flatline.Alarms()
    trainer = broken(trainer_of(tmp_path, max_steps=STEPS))
    trainer.add_callback(flatline.FlatlineCallback(tmp_path / "run", alarms=alarms))
    trainer.train()
    assert [one.step for one in alarms.told] == [1]


def test_a_look_that_fails_breaks_neither_the_training_nor_the_recording(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(Lookout, "look", lambda *_: 1 / 0)
    trainer = trainer_of(tmp_path, max_steps=STEPS)
    trained(trainer, tmp_path / "run", flatline.Alarms(on_fault="stop"))
    assert trainer.state.global_step == STEPS
    assert len(flatline.Trace.open(tmp_path / "run").steps) == STEPS
    assert capfd.readouterr().err.count("no more alarms") == 1


def test_a_function_of_the_users_that_fails_is_said_and_goes_no_further(tmp_path, capfd):
    trainer = broken(trainer_of(tmp_path, max_steps=STEPS))
    trained(trainer, tmp_path / "run", flatline.Alarms(lambda _: 1 / 0))
    assert trainer.state.global_step == STEPS
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("steps", "seconds", "look"), [(8, 2.5, 0.05), (40, 4.0, 0.1), (300, 1.0, 0.3), (5000, 20, 3.0)]
)
def test_all_looks_together_the_last_among_them_take_their_share_of_the_time(
    monkeypatch, steps, seconds, look
):
    monkeypatch.setattr(earned, "SHARE", 0.01)
    ours = earned.Earned()
    for step in range(1, steps + 1):
        if step == steps or ours.pays(step, steps, step * seconds):
            ours.took(look * min(step, 32) ** 0.5, step)
    assert look < ours.spent <= 0.01 * steps * seconds


def test_the_first_step_is_looked_at_where_the_planned_run_pays_for_it(monkeypatch):
    monkeypatch.setattr(earned, "SHARE", 0.01)
    assert earned.Earned().pays(1, 20, 2.5)
    assert not earned.Earned().pays(1, 2, 2.5)
    assert not earned.Earned(spent=0.04, last=0.04).pays(2, 1000, 5.0)


def test_what_to_do_with_a_fault_is_refused_where_it_is_misspelt():
    with pytest.raises(ConfigError, match="neither 'warn' nor 'stop'"):
        flatline.Alarms(on_fault="halt")


def test_several_processes_are_not_stopped_by_one(tmp_path):
    one = SimpleNamespace(trainer=SimpleNamespace(accelerator=SimpleNamespace(num_processes=2)))
    with pytest.raises(ConfigError, match="2 processes"):
        flatline.Alarms(on_fault="stop").attached(one)


# -- trackers

ALARM = Alarm(step=7, level="fault", code="H09", name="x", text="<b>Seen</b>", fix="Do it.")


class Client:
    """Stands for wandb, trackio and mlflow."""

    AlertLevel = SimpleNamespace(ERROR="ERROR", WARN="WARN")

    def __init__(self):
        self.run = self
        self.heard = []

    def alert(self, **told):
        self.heard.append(told)

    def set_tag(self, key, value):
        self.heard.append({key: value})

    def add_text(self, tag, text, global_step):
        self.heard.append({tag: text, "step": global_step})


def callback_of(name, attribute, client):
    callback = type(name, (TrainerCallback,), {})()
    setattr(callback, attribute, client)
    return callback


@pytest.mark.parametrize(("name", "attribute", "expected"), [
    ("WandbCallback", "_wandb", {"level": "ERROR"}),
    ("TrackioCallback", "_trackio", {"level": "ERROR"}),
    ("MLflowCallback", "_ml_flow", {"flatline.alarm.H09": None}),
    ("TensorBoardCallback", "tb_writer", {"step": 7}),
])  # fmt: skip
def test_the_tracker_of_the_run_is_told(name, attribute, expected):
    client = Client()
    tell([TrainerCallback(), callback_of(name, attribute, client)], ALARM)
    assert len(client.heard) == 1
    assert expected.keys() <= client.heard[0].keys()
    assert "<b>" not in str(client.heard[0])
    assert "Seen" in str(client.heard[0])


def test_a_tracker_that_does_not_take_it_is_said(capfd):
    tell([callback_of("WandbCallback", "_wandb", object())], ALARM)
    assert "WandbCallback did not take the alarm" in capfd.readouterr().err


def test_a_tracker_that_has_no_run_is_left_alone(capfd):
    tell([callback_of("WandbCallback", "_wandb", None)], ALARM)
    assert not capfd.readouterr().err


def test_the_page_has_the_figures_that_the_benchmark_prints():
    root = Path(flatline.__file__).parents[2]
    shown = run_path(str(root / "benchmarks" / "alarms.py"))["table"]()
    figures = shown[shown.index("| kind | runs |") :]
    assert figures in (root / "docs" / "answers.md").read_text()
