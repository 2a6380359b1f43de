"""Layers that read the same input as one: the same numbers, and only where they are plain."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from flatline.rollout.autocast_weights import Casts
from flatline.rollout.joined import joined_layers
from tests.tiny import tiny_model

IDS = torch.tensor([[3, 5, 7, 9], [2, 4, 6, 8]])
LOW = torch.bfloat16


def adapted(targets="all-linear", **changes):
    """LoRA that does something: B is not zero."""
    torch.manual_seed(1)
    model = get_peft_model(
        tiny_model(), LoraConfig(r=4, lora_alpha=12, target_modules=targets, **changes)
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.1)
    return model.eval()


def attention_of(model):
    return next(m for m in model.modules() if hasattr(m, "q_proj"))


@pytest.mark.parametrize(
    "make",
    [tiny_model, adapted, lambda: adapted(["q_proj", "v_proj"]), lambda: adapted(["up_proj"])],
    ids=["plain", "LoRA", "LoRA on some", "LoRA on one"],
)
@torch.no_grad()
def test_joined_layers_give_what_each_gives(make):
    model = make().eval()
    x = torch.randn(2, 3, 32, dtype=LOW)
    found = joined_layers(model, LOW)
    assert len(found) == 2 * model.config.num_hidden_layers
    with torch.autocast("cpu", dtype=LOW):
        for joined in found:
            joined.refresh()
            layers = joined._layers
            apart = [layer(x) for layer in layers]
            with joined.used():
                together = [layer(x) for layer in layers]
            for ours, theirs in zip(together, apart, strict=True):
                assert torch.allclose(ours, theirs, atol=0.02)
                assert not torch.allclose(ours, torch.zeros_like(ours), atol=0.02)


@torch.no_grad()
def test_another_input_is_never_answered_with_an_old_one():
    attention = attention_of(tiny_model())
    joined = joined_layers(attention, LOW)[0]
    joined.refresh()
    x, y = torch.randn(2, 1, 3, 32, dtype=LOW)
    with joined.used():
        expected = attention.k_proj(y)
        attention.q_proj(x)
        assert torch.equal(attention.k_proj(y), expected)
        assert not torch.equal(attention.k_proj(x), expected)


def test_weights_are_taken_anew_when_asked():
    model = adapted()
    joined = joined_layers(model, LOW)[0]
    joined.refresh()
    before = joined(torch.ones(1, 32))[0]
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5
    assert torch.equal(joined(torch.ones(1, 32))[0], before)
    joined.refresh()
    assert not torch.equal(joined(torch.ones(1, 32))[0], before)


def scaled_apart(model):
    attention_of(model).q_proj.scaling["default"] *= 2


def listened_to(model):
    attention_of(model).v_proj.register_forward_hook(lambda *_: None)


def in_half(model):
    attention_of(model).k_proj.base_layer.half()


@pytest.mark.parametrize("change", [scaled_apart, listened_to, in_half])
def test_siblings_that_differ_stay_apart(change):
    model = adapted()
    all_of_them = len(joined_layers(model, LOW))
    change(model)
    assert len(joined_layers(model, LOW)) == all_of_them - 1


def test_layers_are_back_afterwards_even_after_a_failure():
    model = adapted()
    with torch.autocast("cpu", dtype=LOW):
        casts = Casts(model)
    with pytest.raises(ValueError), casts.used():
        assert "forward" in vars(attention_of(model).q_proj)
        raise ValueError
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_weight_is_copied_once():
    model = adapted()
    with torch.autocast("cpu", dtype=LOW):
        casts = Casts(model)
    joined = {id(layer) for one in casts._joined for layer in one.layers}
    assert joined and not joined & {id(layer) for layer in casts._layers}
