"""TRL's RLOO and GMPO: what is said of them is true of them, and a departure from them is named."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import (
    DPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.a2po import A2POTrainer
from trl.experimental.async_grpo import AsyncGRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

import flatline
from flatline.errors import ConfigError, TraceError
from flatline.hypotheses.base import ALARMS, Level
from flatline.live.trl.subject import TrlSubject
from flatline.trace.writer import MemorySink
from tests.test_trl_breadth import (
    QUESTIONS,
    SETTINGS,
    asked,
    found,
    letters,
    model_and_tokenizer,
    same,
    trained,
    trainer_in,
)

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import foreign_script
from family import FAULTS, departing, faulty, healthy

torch.set_num_threads(1)
foreign_script.ADAPTED = ["q_proj", "v_proj"]  # on all seven of a block, half of a pass is theirs


def rloo_in(folder, *, kind=RLOOTrainer, callbacks=None, **changes):
    model, tokenizer = model_and_tokenizer()
    model.save_pretrained(folder / "start")  # RLOO reads its reference from there
    return kind(
        model=AutoModelForCausalLM.from_pretrained(folder / "start"),
        processing_class=tokenizer,
        reward_funcs=letters,
        args=RLOOConfig(str(folder), **{**SETTINGS, "max_steps": 2, **changes}),
        train_dataset=Dataset.from_list(QUESTIONS),
        callbacks=callbacks,
    )


INSTEAD = {
    "group-baseline": "mean of the whole group",
    "kl-missing": "without the KL",
    "kl-turned": "wrong sign",
}
"""Faults of the advantages, and what is said to be done in their place."""


# -- the specification


@pytest.mark.parametrize("setting", ["full", "two-iterations", "reward-range", "bf16", "gmpo"])
def test_a_healthy_step_departs_nowhere(setting):
    assert departing(healthy(setting)) == ([], [])


@pytest.mark.parametrize("name", FAULTS)
def test_the_stage_of_a_planted_fault_is_the_first_that_departs(name):
    subject = TrlSubject(faulty(name))
    with subject.standing_still():
        stages = subject.departures()
    departed = next(one for one in stages.values() if one.departs)
    assert departed is stages[FAULTS[name][1]]
    assert INSTEAD.get(name, "") in departed.text


# -- checkup, attach, callback


def test_a_checkup_of_rloo_finds_nothing_and_leaves_no_mark(tmp_path):
    plain, watched = rloo_in(tmp_path / "a"), rloo_in(tmp_path / "b")
    report = flatline.checkup(watched)
    assert not [one.text for one in report.findings if one.level in ALARMS]
    assert not [one.text for one in report.findings if "defect of flatline" in one.text]
    assert same(trained(plain), trained(watched))


def test_a_run_of_rloo_is_recorded_with_its_own_meaning(tmp_path):
    sink = MemorySink()
    trainer = rloo_in(tmp_path, num_iterations=2, max_steps=4)
    attachment = flatline.attach(trainer, sink)
    trained(trainer)
    trace = sink.trace()
    assert not attachment.failed
    assert trace.settings["algorithm"] == "rloo"
    assert trace.settings["scale_rewards"] == "none", "no spread of a group divides an advantage"
    assert trace.steps["kl"][0] == pytest.approx(0, abs=1e-6), "as the trainer logs it"
    assert (trace.steps["ratio_max"] > 1e-3).tolist() == [False, True, False, True]
    report = flatline.diagnose(trace)
    assert "RLOO" in found(report, "H53").text and "RLOO" in found(report, "H54").text
    assert not [one.text for one in report.findings if one.level is Level.FAULT]


class OwnComputeLoss(RLOOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class OwnInputs(RLOOTrainer):
    def _prepare_inputs(self, generation_batch):
        return dict(super()._prepare_inputs(generation_batch))


@pytest.mark.parametrize("kind", [OwnComputeLoss, OwnInputs])
def test_subclasses_that_change_nothing_are_healthy_and_recorded(tmp_path, kind):
    trainer = rloo_in(tmp_path, kind=kind)
    assert departing(trainer) == ([], [])
    sink = MemorySink()
    flatline.attach(trainer, sink)
    trained(trainer)
    assert len(sink.trace().rollouts) == 16 and np.isfinite(sink.trace().tokens().trainer).all()


class Doubled(RLOOTrainer):
    """A loss of the user's own, twice as large."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 2 * super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def test_a_subclass_whose_loss_is_another_is_named(tmp_path):
    assert asked(rloo_in(tmp_path, kind=Doubled), "H56").level is Level.FAULT


def test_gmpo_is_recorded_and_looked_at(tmp_path):
    trainer = trainer_in(tmp_path, kind=GMPOTrainer, num_iterations=2, max_steps=2)
    report = flatline.checkup(trainer)
    assert not [one.text for one in report.findings if one.level in ALARMS]
    sink = MemorySink()
    flatline.attach(trainer, sink)
    trained(trainer)
    assert sink.trace().settings["algorithm"] == "gmpo" and len(sink.trace().steps) == 2


# -- what is neither


KINDS = [DPOTrainer, AsyncGRPOTrainer, A2POTrainer]


@pytest.mark.parametrize("kind", KINDS)
def test_other_trainers_of_trl_get_one_clear_line(tmp_path, kind):
    trainer = object.__new__(kind)
    line = f"This is TRL's {kind.__name__}; flatline knows"
    with pytest.raises(ConfigError, match=line):
        flatline.checkup(trainer)
    with pytest.raises(TraceError, match=line):
        flatline.attach(trainer, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_callback_of_another_trainer_gives_that_line_when_training_begins(tmp_path):
    model, tokenizer = model_and_tokenizer()
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(str(tmp_path / "out"), use_cpu=True, bf16=False, report_to=[]),
        train_dataset=Dataset.from_list([{"text": "a b"}]),
        processing_class=tokenizer,
        callbacks=[flatline.FlatlineCallback(tmp_path / "run")],
    )
    with pytest.raises(TraceError, match="This is TRL's SFTTrainer"):
        trainer.train()
