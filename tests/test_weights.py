"""The sampler's own copy of the weights."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from flatline.errors import ModelError
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.sampling import Sampling
from flatline.rollout.weights import WeightCopy
from tests.tiny import EagerChat, ToyTask, problem, tiny_model, tokenizer_with

IDS = torch.arange(20)[None] * 7


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def lora_on(model, *targets, **options):
    """A LoRA model whose adapters do something."""
    config = LoraConfig(r=4, lora_alpha=16, target_modules=list(targets) or "all-linear", **options)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        adapted = get_peft_model(model, config)
    stir(adapted, seed=1)
    return adapted


def stir(model, *, seed):
    """Move whatever is trainable."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def gpt2():
    config = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize(
    "adapted",
    [
        lambda: lora_on(tiny_model()),
        lambda: lora_on(tiny_model(), "q_proj", "v_proj", use_rslora=True),
        lambda: lora_on(tiny_model(tie_word_embeddings=False), "q_proj", "lm_head"),
        lambda: lora_on(tiny_model(), "q_proj", "embed_tokens"),
        lambda: lora_on(tiny_model(), "q_proj", modules_to_save=["norm"]),
        lambda: lora_on(gpt2(), "c_attn", fan_in_fan_out=True),
    ],
    ids=["all-linear", "rslora", "lm_head", "embeddings", "modules_to_save", "gpt2"],
)
def test_the_copy_computes_what_the_lora_model_computes(adapted):
    model = adapted()
    copied = WeightCopy(model)
    assert (logits(model) - logits(copied.model)).abs().max() < 1e-5
    stir(model, seed=2)
    assert (logits(model) - logits(copied.model)).abs().max() > 1e-2
    before = state(model)
    copied.deliver(model)
    assert (logits(model) - logits(copied.model)).abs().max() < 1e-5
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_copy_shares_nothing_with_its_source_and_ties_what_it_ties():
    model = tiny_model()
    copied = WeightCopy(model)
    ours = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not ours & {tensor.data_ptr() for tensor in copied.model.state_dict().values()}
    weight = copied.model.get_input_embeddings().weight
    assert copied.model.get_output_embeddings().weight.data_ptr() == weight.data_ptr()
    assert not any(parameter.requires_grad for parameter in copied.model.parameters())


def test_buffers_are_delivered():
    model = tiny_model()
    copied = WeightCopy(model)
    model.model.rotary_emb.inv_freq.mul_(2)
    assert not torch.allclose(logits(model), logits(copied.model))
    copied.deliver(model)
    assert torch.equal(logits(model), logits(copied.model))


def test_disabled_adapters_are_not_delivered():
    model = lora_on(tiny_model())
    copied = WeightCopy(model)
    with model.disable_adapter():
        copied.deliver(model)
        plain = logits(model)
    assert (plain - logits(copied.model)).abs().max() < 1e-5


def test_half_precision_adapters_are_left_as_they_are():
    model = lora_on(tiny_model().bfloat16())
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    WeightCopy(model).deliver(model)
    assert before == {name: p.data_ptr() for name, p in model.named_parameters()}


def test_versions_count_deliveries_and_reach_the_rollouts():
    tokenizer, task, model = tokenizer_with(), ToyTask(), tiny_model()
    copied = WeightCopy(model)
    engine = Engine(
        copied,
        tokenizer,
        task,
        sampling=Sampling(),
        limits=Limits(max_turns=2, max_new_tokens=8),
        chat=EagerChat(tokenizer, task.tools),
    )
    jobs = [Job(problem(0), 0)]
    (first,) = engine.play(jobs, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.5)
    (stale,) = engine.play(jobs, seed=0)
    assert [copied.deliver(model), copied.deliver(model)] == [1, 2]
    (fresh,) = engine.play(jobs, seed=0)
    assert [r.weight_version for r in (first, stale, fresh)] == [0, 0, 2]
    assert first.logprobs == stale.logprobs != fresh.logprobs


def test_a_live_lora_model_is_played_with_its_adapters():
    tokenizer, task, model = tokenizer_with(), ToyTask(), lora_on(tiny_model())
    chat = EagerChat(tokenizer, task.tools)
    settings = {"sampling": Sampling(), "limits": Limits(max_turns=2), "chat": chat}
    jobs = [Job(problem(0), k) for k in range(4)]
    live = Engine(model, tokenizer, task, **settings).play(jobs, seed=0)
    delivered = Engine(WeightCopy(model), tokenizer, task, **settings).play(jobs, seed=0)
    assert [r.completion_ids for r in live] == [r.completion_ids for r in delivered]


def test_making_a_copy_leaves_the_random_state_alone():
    model = tiny_model()
    before = torch.get_rng_state()
    WeightCopy(model)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_of_another_model_are_refused():
    copied = WeightCopy(tiny_model())
    with pytest.raises(ModelError, match="do not match"):
        copied.deliver(tiny_model(num_hidden_layers=3))
    with pytest.raises(ModelError, match="do not match"):
        copied.deliver(tiny_model(vocab=301))
    assert copied.version == 0


@pytest.mark.parametrize("option", ["use_dora", "lora_bias"])
def test_adapters_that_are_more_than_a_product_are_refused(option):
    with pytest.raises(ModelError, match="plain LoRA"):
        WeightCopy(lora_on(tiny_model(), "q_proj", **{option: True}))
