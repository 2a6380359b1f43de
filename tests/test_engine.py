"""The engine: every token exact, whatever the batch, and every episode ends."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from flatline.errors import ConfigError, ModelError
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.kv import SlotCache
from flatline.rollout.record import Author, Finish
from flatline.rollout.sampling import Sampling, filtered_logprobs, uniforms
from flatline.rollout.table import feed
from flatline.tasks.base import Observation
from tests.tiny import EagerChat, ToyEpisode, ToyTask, problem, tiny_model, tokenizer_with

TOKENIZER = tokenizer_with()
TASK = ToyTask()
CHAT = EagerChat(TOKENIZER, TASK.tools)
LIMITS = Limits(max_turns=4, max_new_tokens=24)
TIE = 1e-5
"""Uniforms this close to a border of the CDF may fall either way when sums round differently."""


def engine_of(model=None, **changes):
    settings = {"sampling": Sampling(), "limits": LIMITS, "chat": CHAT, **changes}
    return Engine(model or tiny_model(), TOKENIZER, TASK, **settings)


def jobs_of(problems: int, samples: int):
    return [Job(problem(i), k) for i in range(problems) for k in range(samples)]


def plain_logprobs(model, rollout, sampling=None):
    """Log-probs of the completion from one plain forward pass."""
    ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
    with torch.no_grad():
        logits_TV = model(input_ids=ids).logits[0, len(rollout.prompt_ids) - 1 : -1]
    logps_TV = filtered_logprobs(logits_TV, sampling or Sampling())
    return logps_TV, logps_TV.gather(1, ids[0, len(rollout.prompt_ids) :, None])[:, 0]


def differences(model, rollouts, sampling=None):
    """How far each sampled token's log-prob is from the plain one."""
    found = []
    for rollout in rollouts:
        _, plain = plain_logprobs(model, rollout, sampling)
        ours = torch.tensor(rollout.logprobs)
        by_model = torch.tensor(rollout.loss_mask, dtype=torch.bool)
        assert (ours[~by_model] == 0).all()
        found.append((plain - ours)[by_model].abs())
    return torch.cat(found)


def worst_difference(model, rollouts):
    return float(differences(model, rollouts).max())


def in_order(places, rollouts):
    return [rollout for _, rollout in sorted(zip(places, rollouts, strict=True))]


def is_tie(model, rollout, at, *, seed):
    """Whether the draw at this place of the completion lay on a border of the CDF."""
    logps_TV, _ = plain_logprobs(model, rollout)
    drawn = sum(rollout.loss_mask[:at])
    u = uniforms(seed, rollout.problem_id, rollout.sample, drawn + 1)[drawn]
    cdf = logps_TV[at].double().exp().cumsum(-1)
    return float((cdf - u).abs().min()) < TIE


def check_record(rollout, engine):
    """What holds for every rollout."""
    n = len(rollout.completion_ids)
    assert n == len(rollout.authors) == len(rollout.logprobs) > 0
    assert len(rollout.prompt_ids) + n <= engine.max_context
    assert rollout.authors[0] is rollout.authors[-1] is Author.MODEL
    turns, ids, at = iter(rollout.turns), rollout.completion_ids, 0
    while at < n:
        end = at
        while end < n and rollout.authors[end] is Author.MODEL:
            end += 1
        turn = next(turns)
        ended = ids[end - 1] in engine._eos
        assert turn.text == TOKENIZER.decode(ids[at : end - 1 if ended else end])
        assert ended or (end == n and rollout.finish is Finish.TURN_LENGTH)
        assert end - at <= engine.limits.max_new_tokens
        assert not set(ids[at : end - 1]) & engine._eos
        calls = engine.chat.parse(turn.text)
        at = end
        if end < n:
            suffix, authors = engine.chat.suffix(turn.observations, calls)
            at += len(suffix)
            assert (ids[end:at], rollout.authors[end:at]) == (suffix, authors)
    assert next(turns, None) is None


def test_log_probs_of_128_rollouts_match_one_plain_forward_pass():
    model = tiny_model()
    engine = engine_of(model)
    rollouts = engine.play(jobs_of(32, 4), seed=0)
    for rollout in rollouts:
        check_record(rollout, engine)
    assert np.mean([len(r.turns) for r in rollouts]) > 2
    assert len({r.finish for r in rollouts}) >= 3
    assert worst_difference(model, rollouts) <= 1e-4


def test_a_rollout_is_the_same_alone_and_in_any_batch():
    model = tiny_model()
    engine = engine_of(model)
    jobs = jobs_of(8, 4)
    together = engine.play(jobs, seed=3)
    shuffled = random.Random(0).sample(range(len(jobs)), len(jobs))
    ties = 0
    for variant in (
        [engine.play([job], seed=3)[0] for job in jobs],
        engine_of(model, max_batch=5).play(jobs, seed=3),
        in_order(shuffled, engine.play([jobs[i] for i in shuffled], seed=3)),
    ):
        for ours, other in zip(together, variant, strict=True):
            assert (ours.problem_id, ours.sample) == (other.problem_id, other.sample)
            if ours.completion_ids != other.completion_ids:
                pairs = zip(ours.completion_ids, other.completion_ids, strict=False)
                at = next(i for i, (a, b) in enumerate(pairs) if a != b)
                assert is_tie(model, ours, at, seed=3)
                ties += 1
    assert ties <= 2


def test_seeds_and_samples_differ():
    engine = engine_of()
    first, second = engine.play(jobs_of(1, 2), seed=0)
    (third,) = engine.play(jobs_of(1, 1), seed=1)
    assert first.completion_ids != second.completion_ids
    assert first.completion_ids != third.completion_ids


models = {seed: tiny_model(seed=seed, num_key_value_heads=2 + 2 * (seed % 2)) for seed in range(3)}
templates = {
    name: tokenizer_with(name, eos="<|eot_id|>" if "llama" in name else "<|im_end|>")
    for name in ("hermes", "qwen2_5", "qwen3_training", "llama3_1")
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_template_length_stop_and_filter_is_exact(data):
    model = models[data.draw(st.integers(0, 2))]
    tokenizer = templates[data.draw(st.sampled_from(sorted(templates)))]
    chat = EagerChat(tokenizer, TASK.tools)
    chat.eos_ids = chat.eos_ids | set(data.draw(st.sets(st.integers(0, 299), max_size=40)))
    sampling = data.draw(
        st.builds(
            Sampling,
            temperature=st.sampled_from([0.6, 1.0, 1.7]),
            top_k=st.sampled_from([0, 5, 40]),
            top_p=st.sampled_from([0.5, 0.9, 1.0]),
            min_p=st.sampled_from([0.0, 0.05]),
        )
    )
    limits = data.draw(
        st.builds(
            Limits,
            max_turns=st.integers(1, 4),
            max_new_tokens=st.integers(1, 20),
            max_context=st.sampled_from([None, 1100, 1300]),
            max_completion_tokens=st.sampled_from([None, 1, 90, 200]),
        )
    )
    engine = Engine(
        model,
        tokenizer,
        TASK,
        sampling=sampling,
        limits=limits,
        chat=chat,
        max_batch=data.draw(st.sampled_from([None, 1, 3])),
    )
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    jobs = [
        Job(replace(problem(i, "why? " * n), id=f"q{i}-{n}"), k)
        for i, n in enumerate(lengths)
        for k in range(data.draw(st.integers(1, 3)))
    ]
    rollouts = engine.play(jobs, seed=data.draw(st.integers(0, 99)))
    for rollout in rollouts:
        check_record(rollout, engine)
        if limits.max_completion_tokens:
            assert len(rollout.completion_ids) <= limits.max_completion_tokens
    # A token on the very edge of a filter may fall either way, which moves a whole distribution.
    edges = 0 if (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1, 0) else 1
    assert (differences(model, rollouts, sampling) > 1e-4).sum() <= edges


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mistral"])
def test_other_architectures_are_played_exactly(family, implementation):
    common = {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    small = {
        **common,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
    }
    configs = {
        "llama": (LlamaForCausalLM, LlamaConfig(**small)),
        "gpt2": (GPT2LMHeadModel, GPT2Config(n_embd=32, n_layer=2, n_head=4, **common)),
        "gemma2": (Gemma2ForCausalLM, Gemma2Config(sliding_window=4096, **small)),
        "mistral": (MistralForCausalLM, MistralConfig(sliding_window=4096, **small)),
    }
    if family == "gemma2" and implementation == "sdpa":
        pytest.skip("Gemma 2 caps attention scores, which sdpa cannot")
    kind, config = configs[family]
    config._attn_implementation = implementation
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config).eval()
    engine = engine_of(model, limits=replace(LIMITS, max_context=1000))
    assert worst_difference(model, engine.play(jobs_of(4, 2), seed=0)) <= 1e-4


def test_long_prompts_are_fed_in_pieces(monkeypatch):
    model = tiny_model()
    whole = engine_of(model).play(jobs_of(4, 2), seed=0)
    monkeypatch.setattr("flatline.rollout.table.MAX_FEED", 100)
    pieces = engine_of(model).play(jobs_of(4, 2), seed=0)
    assert [r.completion_ids for r in pieces] == [r.completion_ids for r in whole]
    assert worst_difference(model, pieces) <= 1e-4


def test_a_shared_prompt_is_fed_once():
    model = tiny_model()
    engine = engine_of(model)
    fed = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    engine.play(jobs_of(2, 8), seed=0)
    assert fed[0][0] == 2


def test_every_token_is_fed_exactly_once():
    """The end-of-turn token enters the cache before the observation does."""
    model = tiny_model()
    engine = engine_of(model)
    fed = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append((kwargs["position_ids"], kwargs["input_ids"])),
        with_kwargs=True,
    )
    (rollout,) = engine.play([Job(problem(0), 5)], seed=1)
    hook.remove()
    assert len(rollout.turns) > 1
    positions = [int(p) for at, _ in fed for p in at[0]]
    ids = [int(i) for _, chunk in fed for i in chunk[0]]
    assert positions == list(range(len(positions)))
    assert ids == (rollout.prompt_ids + rollout.completion_ids)[:-1]


def test_a_model_that_never_stops_is_bounded():
    chat = ChatFormat(TOKENIZER, TASK.tools)
    chat.eos_ids = frozenset()
    for limits in (Limits(max_new_tokens=40), Limits(max_new_tokens=9999, max_context=400)):
        engine = engine_of(chat=chat, limits=limits)
        for rollout in engine.play(jobs_of(2, 2), seed=0):
            assert rollout.finish is Finish.TURN_LENGTH
            assert rollout.score.reward == 1
            most = min(limits.max_new_tokens, engine.max_context - len(rollout.prompt_ids))
            assert len(rollout.completion_ids) == most


def test_a_model_that_stops_at_once_leaves_its_end_token():
    chat = ChatFormat(TOKENIZER, TASK.tools)
    chat.eos_ids = frozenset(range(300))
    for rollout in engine_of(chat=chat).play(jobs_of(2, 2), seed=0):
        assert rollout.finish is Finish.ANSWERED
        assert len(rollout.completion_ids) == 1
        assert rollout.turns[0].text == ""


class Calling(EagerChat):
    """Every turn is one call."""

    def parse(self, text):
        return super().parse("b")[:1]


def test_calling_to_the_last_turn_finishes_with_turns():
    chat = Calling(TOKENIZER, TASK.tools)
    chat.eos_ids = frozenset(range(300))
    for rollout in engine_of(chat=chat).play(jobs_of(2, 2), seed=0):
        assert rollout.finish is Finish.TURNS
        assert [len(turn.observations) for turn in rollout.turns] == [1, 1, 1, 0]
        assert [turn.documents for turn in rollout.turns] == [[7], [7], [7], []]
        assert rollout.score.reward == 0
        assert rollout.events == Counter(tool_calls=3)


@pytest.mark.parametrize("limit", ["max_context", "max_completion_tokens"])
def test_an_observation_without_room_finishes_with_context(limit):
    class Verbose(ToyTask):
        def episode(self, problem):
            episode = ToyEpisode(problem)
            episode._run = lambda call: Observation(text="word " * 1000)
            return episode

    chat = Calling(TOKENIZER, TASK.tools)
    chat.eos_ids = frozenset(range(300))
    limits = Limits(**{limit: 600})
    engine = Engine(
        tiny_model(), TOKENIZER, Verbose(), sampling=Sampling(), limits=limits, chat=chat
    )
    for rollout in engine.play(jobs_of(2, 1), seed=0):
        assert rollout.finish is Finish.CONTEXT
        assert len(rollout.completion_ids) == 1
        assert rollout.score.reward == 0


def test_the_observation_fits_to_the_last_token():
    chat = Calling(TOKENIZER, TASK.tools)
    chat.eos_ids = frozenset(range(300))
    (first,) = engine_of(chat=chat, limits=Limits(max_turns=2)).play(jobs_of(1, 1), seed=0)
    size = len(first.prompt_ids) + len(first.completion_ids)
    for room, finish in [(size, Finish.TURNS), (size - 1, Finish.CONTEXT)]:
        limits = Limits(max_turns=2, max_context=room)
        (rollout,) = engine_of(chat=chat, limits=limits).play(jobs_of(1, 1), seed=0)
        assert rollout.finish is finish


def test_training_flags_gradients_and_random_state_are_left_alone():
    model = tiny_model().train()
    model.model.layers[0].eval()
    flags = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    engine = engine_of(model)
    engine.play(jobs_of(2, 2), seed=0)
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert torch.is_grad_enabled()
    # Playing runs in inference mode; what a module computed there must not block gradients.
    model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


def test_flags_are_put_back_when_a_callback_fails():
    model = tiny_model().train()
    with pytest.raises(KeyError):
        engine_of(model).play(jobs_of(1, 1), seed=0, on_done=lambda rollout: {}["missing"])
    assert model.training


def test_every_rollout_is_announced_once():
    announced = []
    rollouts = engine_of(max_batch=3).play(jobs_of(4, 2), seed=0, on_done=announced.append)
    assert len(announced) == len(rollouts) == 8
    assert {id(r) for r in announced} == {id(r) for r in rollouts}
    assert engine_of().play([], seed=0) == []


def test_generation_config_may_name_more_ends_of_turn():
    model = tiny_model()
    model.generation_config.eos_token_id = [4, 5]
    engine = Engine(model, TOKENIZER, TASK, sampling=Sampling(), limits=LIMITS)
    assert {4, 5, TOKENIZER.eos_token_id} <= engine._eos


def test_broken_weights_are_named_as_such():
    model = tiny_model()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ModelError, match="NaN"):
        engine_of(model).play(jobs_of(1, 1), seed=0)


def test_a_prompt_that_fills_the_context_is_refused_by_name():
    engine = engine_of(limits=Limits(max_context=50))
    with pytest.raises(ConfigError, match="'p0' has"):
        engine.play(jobs_of(1, 1), seed=0)


@pytest.mark.parametrize("wrong", [{"max_turns": 0}, {"max_new_tokens": 0}, {"max_context": -1}])
def test_impossible_limits_are_refused(wrong):
    with pytest.raises(ConfigError, match="at least 1"):
        Limits(**wrong)


def test_more_context_than_the_model_has_is_refused():
    with pytest.raises(ConfigError, match="--max-context 2048"):
        engine_of(limits=Limits(max_context=4096))


def test_a_sliding_window_is_played_only_within_its_reach():
    config = MistralConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=512,
        max_position_embeddings=2048,
    )
    model = MistralForCausalLM(config).eval()
    with pytest.raises(ModelError, match="--max-context 512"):
        engine_of(model)
    engine_of(model, limits=Limits(max_context=512))


def test_a_model_without_attention_is_refused():
    config = MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4)
    config.max_position_embeddings = 100
    with pytest.raises(ModelError, match="cannot be run"):
        engine_of(MambaForCausalLM(config))


def test_attention_that_takes_no_mask_is_refused():
    model = tiny_model()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ModelError, match="attn_implementation"):
        engine_of(model)


def test_running_out_of_memory_says_what_to_type(monkeypatch, capsys):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError

    engine = engine_of()
    monkeypatch.setattr("flatline.rollout.table.forward", full)
    with pytest.raises(ModelError, match="--max-context"):
        engine.play(jobs_of(4, 2), seed=0)
    assert "8 rollouts" in capsys.readouterr().err, "fewer were tried first"


def test_where_memory_runs_out_half_as_many_are_played_on(capsys, monkeypatch):
    model, finished = tiny_model(), []
    plain = engine_of(model).play(jobs_of(6, 4), seed=0)
    reserve = SlotCache.reserve

    def too_large(cache, tokens):
        if cache.slots > 8 and tokens > 450:  # some plays have ended by then
            raise torch.OutOfMemoryError
        reserve(cache, tokens)

    monkeypatch.setattr(SlotCache, "reserve", too_large)
    engine = engine_of(model)
    played = engine.play(jobs_of(6, 4), seed=0, on_done=finished.append)
    assert [r.completion_ids for r in played] == [r.completion_ids for r in plain]
    assert sorted(map(id, finished)) == sorted(map(id, played)), "each ends once"
    notices = capsys.readouterr().err
    assert 0 < engine.max_batch <= 8
    assert "24 rollouts" in notices and f"--max-batch {engine.max_batch}`" in notices


def test_under_autocast_keys_are_kept_in_the_precision_of_attention():
    cache = SlotCache(1, capacity=4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        feed(tiny_model(), cache, [[1, 2]], [0])
    assert cache._keys[0].dtype == cache._values[0].dtype == torch.bfloat16
