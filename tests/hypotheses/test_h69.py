"""H69 adapters-mixed-up."""

from types import SimpleNamespace

import pytest
import torch
from tests.hypotheses.edited import levels_of
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


test_levels = levels_of(None, {
    "a sampler with another adapter": ("fault", lambda: found(OTHER, OWN)),
    "a sampler without any adapter": ("fault", lambda: found(BASE, OWN)),
    "a loss with another adapter": ("fault", lambda: found(OWN, OTHER)),
    "the adapter that is trained": ("ok", lambda: found(OWN, OWN)),
    "a frozen copy as reference is as near and no fault": ("ok",
        lambda: found((SAME, SAME, APART), (SAME, SAME, APART))),
    "rounding is no other adapter": ("ok", lambda: found((0.03, 0.02, 0.02), OWN)),
    "one adapter cannot be mixed up": ("ok", lambda: found((), (), trained=())),
    "a sampler without log probs": ("unknown", lambda: found((), OWN)),
})  # fmt: skip
