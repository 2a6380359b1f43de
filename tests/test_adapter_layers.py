"""Each LoRA layer is asked by itself for what it adds."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear
from torch import nn

from flatline.live.departure.adapters import (
    judge_adapters,
    judge_beginning,
    judge_merging,
    layers,
    set_before,
)


def model_of(dtype=torch.float32, **options):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(dtype)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["0", "1"], **options)
    model = get_peft_model(base, config, autocast_adapter_dtype=False)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.05)
    return model


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"rank_pattern": {"0": 2}}])
def test_a_sound_layer_adds_what_its_matrices_say(options):
    model = model_of(**options)
    assert len(list(layers(model))) == 2
    assert judge_adapters(model) is None


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}])
def test_layers_of_another_form_are_left_alone(options):
    assert list(layers(model_of(**options))) == []


def test_a_fresh_adapter_adds_nothing_and_a_trained_one_may():
    wide = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model = get_peft_model(wide, LoraConfig(r=8, target_modules=["0", "1"]))
    assert judge_beginning(model) is None
    assert judge_beginning(model_of()) is None
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.uniform_(weight, -(8**-0.5), 8**-0.5)
    found = judge_beginning(model)
    assert found.departs
    assert "lora_B" in " ".join(one.source for one, _ in set_before(model, found))


@pytest.mark.parametrize("way", ["olora", "orthogonal"])
def test_an_adapter_that_begins_another_way_than_its_configuration_says_is_named(way):
    wide = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    config = LoraConfig(r=8, target_modules=["0", "1"], init_lora_weights=way)
    model = get_peft_model(wide, config)
    assert judge_beginning(model) is None, "as asked"
    model.peft_config["default"].init_lora_weights = True
    found = judge_beginning(model)
    assert found.departs


def test_a_layer_with_half_an_adapter_is_named_with_who_makes_its_matrices():
    model = model_of()
    del next(layers(model)).layer.lora_A["default"]
    found = judge_adapters(model)
    assert found.departs
    assert any("self.lora_A[" in one.source for one, _ in set_before(model, found))


def test_a_bias_that_nobody_asked_for_is_looked_up_where_the_matrix_is_made():
    model = model_of()
    layer = next(layers(model)).layer
    layer.lora_A["default"] = nn.Linear(8, 4)
    found = judge_adapters(model)
    sources = [one.source for one, _ in set_before(model, found)]
    assert sources and all("self.lora_A[" in one for one in sources)


def test_a_second_matrix_with_a_bias_that_nobody_asked_for_is_named():
    model = model_of()
    layer = next(layers(model)).layer
    layer.lora_B["default"].bias = nn.Parameter(torch.ones(layer.out_features))
    found = judge_adapters(model)
    assert found.departs
    assert any("self.lora_B[" in one.source for one, _ in set_before(model, found))
    assert judge_adapters(model_of(lora_bias=True)) is None


def test_a_factor_that_is_another_is_looked_up_with_the_condition_that_chose_it():
    model = model_of()
    next(layers(model)).layer.scaling["default"] *= 2
    found = judge_adapters(model)
    sources = [one.source for one, _ in set_before(model, found)]
    assert "if use_rslora:" in sources and len(sources) <= 5


def test_a_matrix_that_is_missing_is_looked_up_beside_the_one_that_is_there(monkeypatch):
    def update_layer(self, adapter_name, r):
        self.lora_dropout[adapter_name] = nn.Identity()
        self.lora_bias[adapter_name] = nn.Linear(self.in_features, r)
        self.lora_B[adapter_name] = nn.Linear(r, self.out_features)
        self.scaling[adapter_name] = 2

    model = model_of()
    del next(layers(model)).layer.lora_A["default"]
    monkeypatch.setattr(Linear, "update_layer", update_layer)
    sources = [one.source for one, _ in set_before(model, judge_adapters(model))]
    assert [one.partition("[")[0] for one in sources] == [
        "self.lora_B",
        "self.lora_bias",
        "self.lora_B",
        "self.scaling",
    ]


def test_half_precision_is_no_departure():
    assert judge_adapters(model_of(torch.bfloat16)) is None


@pytest.mark.parametrize("factor", [0.5, -1.0])
def test_a_layer_that_adds_something_else_departs(monkeypatch, factor):
    forward = Linear.forward

    def wrong(layer, x):
        base = layer.base_layer(x)
        return base + factor * (forward(layer, x) - base)

    monkeypatch.setattr(Linear, "forward", wrong)
    told = judge_adapters(model_of())
    assert told.departs and told.stage == "log-probs"
    assert f"{abs(factor):g} times as much" in told.text


def test_sound_layers_merge_and_are_left_as_they_were():
    model = model_of()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    assert judge_merging(model) is None and judge_merging(model_of(torch.bfloat16)) is None
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    assert not next(layers(model)).layer.merged


@pytest.mark.parametrize("method", ["get_delta_weight", "merge", "unmerge"])
def test_the_method_that_merges_wrongly_is_named_and_the_weight_put_back(monkeypatch, method):
    sound = getattr(Linear, method)

    def wrong(layer, *given):
        found = sound(layer, *given)
        if found is None:
            layer.base_layer.weight.data += 0.1
        return found if found is None else -found

    monkeypatch.setattr(Linear, method, wrong)
    model = model_of()
    weight = next(layers(model)).layer.base_layer.weight
    before = weight.detach().clone()
    told = judge_merging(model)
    assert (told.stage, told.departs) == ("delivery", True)
    assert f"{method} is wrong" in told.text
    assert torch.equal(weight, before)


def test_a_layer_with_dropout_in_force_is_not_asked():
    assert list(layers(model_of(lora_dropout=0.1).train())) == []
