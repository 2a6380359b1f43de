"""H69 adapters-mixed-up."""

from types import SimpleNamespace

import pytest
import torch
from tests.test_faults import tiny

from flatline.hypotheses.base import Level
from flatline.hypotheses.h69_adapters_mixed_up import AdaptersMixedUp
from flatline.live.records import AdapterGaps
from flatline.training.subject import OurSubject
from flatline.training.trainer import build

H = AdaptersMixedUp()
SAME, APART = 1e-6, 0.4


def found(sampler, scorer, trained=("default",)):
    names = ("default", "other", "none")
    sampler, scorer = (dict(zip(names, gaps, strict=False)) for gaps in (sampler, scorer))
    gaps = AdapterGaps(trained=trained, sampler=sampler, scorer=scorer)
    return H.probe(SimpleNamespace(adapter_gaps=lambda: gaps))


OWN, OTHER, BASE = (SAME, APART, APART), (APART, SAME, APART), (APART, APART, SAME)


def test_a_sampler_with_another_adapter_is_a_fault():
    told = found(OTHER, OWN)
    assert told.level is Level.FAULT and "sampler uses the adapter `other`" in told.text


def test_a_sampler_without_any_adapter_is_a_fault():
    assert "sampler uses no adapter" in found(BASE, OWN).text


def test_a_loss_with_another_adapter_is_a_fault():
    told = found(OWN, OTHER)
    assert told.level is Level.FAULT and "loss is taken of log-probs with the adapter" in told.text


def test_the_adapter_that_is_trained_is_fine():
    assert found(OWN, OWN).level is Level.OK


def test_a_frozen_copy_as_reference_is_as_near_and_no_fault():
    assert found((SAME, SAME, APART), (SAME, SAME, APART)).level is Level.OK


def test_rounding_is_no_other_adapter():
    assert found((0.03, 0.02, 0.02), OWN).level is Level.OK


def test_one_adapter_cannot_be_mixed_up():
    told = found((), (), trained=())
    assert told.level is Level.OK and "Does not apply" in told.text


def test_a_sampler_without_log_probs_cannot_be_told():
    assert found((), OWN).level is Level.UNKNOWN


@pytest.mark.parametrize(("fault", "level"), [("sampler-other-adapter", Level.FAULT), (None, "ok")])
def test_a_live_trainer_with_two_adapters(tmp_path, fault, level):
    built = build(tiny(tmp_path, fault=fault))
    model = built.trainer.model
    if fault is None:  # its healthy twin has a second adapter too, which nobody uses
        model.add_adapter("other", model.peft_config["default"])
        for name, weight in model.named_parameters():
            if "lora_B.other." in name:
                torch.nn.init.normal_(weight, std=0.05)
    before = [(name, weight.requires_grad) for name, weight in model.named_parameters()]
    assert H.probe(OurSubject(built)).level == level
    assert [(name, weight.requires_grad) for name, weight in model.named_parameters()] == before
    assert model.active_adapter == "default"
