"""Layers in fewer kernels: the same numbers, and only where nothing else is going on."""

import importlib

import pytest
import torch
from peft import LoraConfig, get_peft_model

from flatline.rollout.kernels import NORMS, fused
from tests.tiny import tiny_model

IDS = torch.tensor([[3, 5, 7, 9], [2, 4, 6, 8]])


def adapted(**changes):
    """LoRA that does something: B is not zero."""
    config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", **changes)
    torch.manual_seed(1)
    model = get_peft_model(tiny_model(), config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.1)
    return model.eval()


def replaced(model):
    """LoRA layers that compute in another way."""
    with fused(model):
        return sum("forward" in vars(m) for m in model.modules() if hasattr(m, "lora_A"))


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


def test_fused_layers_give_what_peft_gives():
    model = adapted()
    before = logits(model)
    with fused(model):
        assert replaced(model) > 0
        assert torch.allclose(logits(model), before, atol=1e-5)
    assert not torch.allclose(before, logits(model.get_base_model().eval()) * 0)


def test_fused_layers_follow_autocast():
    model = adapted()
    exact = logits(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = logits(model).float()
        with fused(model):
            ours = logits(model).float()
    noise = (theirs - exact).abs().mean()
    assert 0 < (ours - exact).abs().mean() < 1.5 * noise


def test_layers_are_back_afterwards_even_after_a_failure():
    model = adapted()
    with pytest.raises(ValueError), fused(model):
        raise ValueError
    assert not any("forward" in vars(module) for module in model.modules())


def test_adapters_that_are_off_merged_or_more_than_one_keep_their_own_way():
    model = adapted()
    assert replaced(model) > 0
    with model.disable_adapter():
        assert replaced(model) == 0
    model.merge_adapter()
    assert replaced(model) == 0
    model.unmerge_adapter()
    model.add_adapter("second", LoraConfig(r=2, target_modules="all-linear"))
    model.base_model.set_adapter(["default", "second"])
    assert replaced(model) == 0


def test_other_kinds_of_adapters_keep_their_own_way():
    assert replaced(adapted(use_dora=True)) == 0
    assert replaced(adapted(lora_bias=True)) == 0


def test_dropout_in_force_keeps_its_own_way():
    model = adapted(lora_dropout=0.5)
    assert replaced(model) > 0
    assert replaced(model.train()) == 0


def test_a_layer_that_someone_listens_to_keeps_its_own_way():
    model = adapted()
    layer = next(m for m in model.modules() if hasattr(m, "lora_A"))
    all_layers = replaced(model)
    handle = layer.lora_A["default"].register_forward_hook(lambda *_: None)
    assert replaced(model) == all_layers - 1
    handle.remove()
    assert replaced(model) == all_layers


@pytest.mark.parametrize("name", NORMS)
def test_fused_norms_give_what_the_model_gives(name):
    kind = name.removesuffix("RMSNorm")
    module = importlib.import_module(f"transformers.models.{kind.lower()}.modeling_{kind.lower()}")
    norm = getattr(module, name)(64, eps=1e-4)
    norm.weight.data.normal_()
    x = torch.randn(3, 5, 64)
    before = norm(x)
    with fused(norm):
        assert "forward" in vars(norm)
        assert torch.allclose(norm(x), before, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16), fused(norm):
        assert torch.equal(norm(x), before.to(torch.bfloat16))
