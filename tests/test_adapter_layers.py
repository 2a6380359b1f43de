"""Each LoRA layer is asked by itself for what it adds."""

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear
from torch import nn

from flatline.live.trl.departure.adapters import judge_adapters, layers


def trainer_of(dtype=torch.float32, **options):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(dtype)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["0", "1"], **options)
    model = get_peft_model(base, config, autocast_adapter_dtype=False)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.05)
    return SimpleNamespace(model=model, accelerator=SimpleNamespace(unwrap_model=lambda m: m))


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"rank_pattern": {"0": 2}}])
def test_a_sound_layer_adds_what_its_matrices_say(options):
    trainer = trainer_of(**options)
    assert len(list(layers(trainer))) == 2
    assert judge_adapters(trainer) is None


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}])
def test_layers_of_another_form_are_left_alone(options):
    assert list(layers(trainer_of(**options))) == []


def test_half_precision_is_no_departure():
    assert judge_adapters(trainer_of(torch.bfloat16)) is None


@pytest.mark.parametrize("factor", [0.5, -1.0])
def test_a_layer_that_adds_something_else_departs(monkeypatch, factor):
    forward = Linear.forward

    def wrong(layer, x):
        base = layer.base_layer(x)
        return base + factor * (forward(layer, x) - base)

    monkeypatch.setattr(Linear, "forward", wrong)
    told = judge_adapters(trainer_of())
    assert told.departs and told.stage == "log-probs"
    assert f"{abs(factor):g} times as much" in told.text
