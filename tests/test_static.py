"""Decoding without the host: the same tokens as step by step, in steps that could be recorded."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.config import RunConfig
from flatline.errors import ModelError
from flatline.rollout.autocast_weights import Casts
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.graphs import Graphs, setting
from flatline.rollout.grouped import NAME, sharing_keys
from flatline.rollout.sampling import Sampling
from flatline.rollout.static import Static, StaticCache, columns, height
from flatline.tasks import make_task
from flatline.training.models import load_policy
from flatline.training.trainer import build
from tests.test_engine import (
    CHAT,
    LIMITS,
    TASK,
    TOKENIZER,
    check_record,
    engine_of,
    is_tie,
    jobs_of,
    worst_difference,
)
from tests.test_weights import lora_on
from tests.tiny import tiny_model

SMALL = {"MIN_ROWS": 2, "MIN_COLUMNS": 32}
"""Sizes at which tiny plays meet every change of shape."""


@pytest.fixture(params=[{}, SMALL], ids=["as on a GPU", "small sizes"])
def sizes(request, monkeypatch):
    for name, value in request.param.items():
        monkeypatch.setattr(f"flatline.rollout.static.{name}", value)


def both(jobs, *, seed=0, model=None, **changes):
    """The same jobs step by step and static."""
    model = model or tiny_model()
    return [engine_of(model, static=s, **changes).play(jobs, seed=seed) for s in (False, True)]


def check_same(stepwise, static, *, model=None, seed=0):
    """Equal but for ties, which need a model to be told."""
    assert len(stepwise) == len(static) > 0
    for a, b in zip(stepwise, static, strict=True):
        if a.completion_ids != b.completion_ids:
            pairs = zip(a.completion_ids, b.completion_ids, strict=False)
            first = next(i for i, (x, y) in enumerate(pairs) if x != y)
            assert model is not None
            assert is_tie(model, a, first, seed=seed)
            continue
        assert (a.authors, a.finish, a.turns) == (b.authors, b.finish, b.turns)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_ragged_turns_of_groups_are_the_same(sizes):
    model = tiny_model()
    stepwise, static = both(jobs_of(12, 4), model=model)
    check_same(stepwise, static, model=model)
    assert len({len(rollout.turns) for rollout in static}) > 2
    assert worst_difference(model, static) <= 1e-4


def test_batches_smaller_than_the_jobs_are_the_same(sizes):
    check_same(*both(jobs_of(5, 3), max_batch=4))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0), Sampling(temperature=0.7, top_k=20), Sampling(top_p=0.9, min_p=0.01)],
    ids=["greedy", "top-k", "top-p"],
)
def test_every_way_to_draw_is_the_same(sampling):
    check_same(*both(jobs_of(4, 3), sampling=sampling))


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_new_tokens=1),
        Limits(max_new_tokens=7, max_turns=2),
        Limits(max_new_tokens=24, max_context=400),
        Limits(max_new_tokens=24, max_completion_tokens=40),
    ],
    ids=["one token", "few turns", "context", "completion"],
)
def test_limits_hold_to_the_token(limits, sizes):
    stepwise, static = both(jobs_of(6, 2), limits=limits)
    check_same(stepwise, static)
    engine = engine_of(limits=limits)
    for rollout in static:
        check_record(rollout, engine)


@pytest.mark.parametrize("ends", [frozenset(), frozenset(range(300))], ids=["never", "at once"])
def test_models_that_never_stop_or_stop_at_once_are_the_same(ends, sizes):
    chat = ChatFormat(TOKENIZER, TASK.tools)
    chat.eos_ids = ends
    check_same(*both(jobs_of(3, 2), chat=chat, limits=Limits(max_new_tokens=70, max_context=400)))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_limits_and_batch_are_the_same(data):
    limits = Limits(
        max_turns=data.draw(st.integers(1, 4)),
        max_new_tokens=data.draw(st.integers(1, 40)),
        max_context=data.draw(st.sampled_from([None, 400, 500])),
    )
    model, seed = tiny_model(seed=data.draw(st.integers(0, 3))), data.draw(st.integers(0, 99))
    jobs = jobs_of(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4)))
    batch = data.draw(st.sampled_from([None, 1, 3]))
    pair = both(jobs, seed=seed, model=model, limits=limits, max_batch=batch)
    check_same(*pair, model=model, seed=seed)


@pytest.mark.parametrize("waiting", [0.1, 0.5, 1.0])
def test_how_long_a_round_waits_changes_no_token(waiting, monkeypatch):
    monkeypatch.setattr("flatline.rollout.static.WAITING", waiting)
    monkeypatch.setattr("flatline.rollout.static.LOOK_EVERY", 2)
    model = tiny_model()
    check_same(*both(jobs_of(6, 3), model=model), model=model)


def test_plays_go_on_while_others_wait_for_nobody(monkeypatch):
    steps = []
    step = Static._step

    def counted(self, *args):
        steps[-1] += 1
        step(self, *args)

    monkeypatch.setattr(Static, "_step", counted)
    monkeypatch.setattr("flatline.rollout.static.LOOK_EVERY", 2)
    for waiting in (1.0, 0.5):
        monkeypatch.setattr("flatline.rollout.static.WAITING", waiting)
        steps.append(0)
        engine_of(static=True).play(jobs_of(12, 4), seed=0)
    assert steps[1] < steps[0]


def test_the_lab_policy_plays_the_same():
    task, policy = make_task("musique"), load_policy("lab", device="cpu")
    jobs = [Job(p, k) for p in task.load("lab,,validation[:4]", split="validation") for k in (0, 1)]
    limits = Limits(max_turns=6, max_new_tokens=96)
    played = [
        Engine(*policy, task, sampling=Sampling(), limits=limits, static=s).play(jobs, seed=3)
        for s in (False, True)
    ]
    check_same(*played)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_heads_that_share_keys_read_them_once(implementation):
    model = tiny_model(num_attention_heads=4, num_key_value_heads=1)
    model.config._attn_implementation = implementation
    check_same(*both(jobs_of(3, 2), model=model))
    assert model.config._attn_implementation == implementation


def test_shared_keys_are_not_copied():
    model = tiny_model(num_attention_heads=4, num_key_value_heads=1)
    ids = torch.tensor([[5]])
    mask = torch.zeros(1, 1, 1, 1)
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=mask).logits
        with sharing_keys(model):
            assert model.config._attn_implementation == NAME
            grouped = model(input_ids=ids, attention_mask=mask).logits
    assert torch.allclose(plain, grouped, atol=1e-6)


# -- recorded steps


class Recorder:
    """Stands for a GPU's: a replay needs everything to lie where it lay."""

    def __init__(self, engine, *, failing=lambda count: None):
        self.made, self.replayed = 0, 0
        self._engine, self._failing = engine, failing

    def __call__(self, step):
        self._failing(self.made)
        self.made += 1
        for _ in range(3):
            step()
        places = self._places()

        def replay():
            assert self._places() == places, "a recorded step met other addresses"
            self.replayed += 1
            cache = self._engine._loop._cache
            used, cache.used = cache.used, 0
            step()
            cache.used = used  # a replay runs nothing on the host

        return replay

    def _places(self):
        loop = self._engine._loop
        rows = [getattr(loop._rows, name) for name in loop._rows.__slots__]
        cache = [*loop._cache._keys, *loop._cache._values]
        return [t.data_ptr() for t in (*self._engine.model.parameters(), *rows, *cache)]


def recording(model=None, failing=lambda count: None, **changes):
    engine = engine_of(model, static=True, **changes)
    recorder = Recorder(engine, failing=failing)
    engine._loop.graphs = Graphs(recorder)
    return engine, recorder


def test_recorded_steps_give_the_same_tokens(sizes):
    model = tiny_model()
    engine, recorder = recording(model)
    for seed in (0, 1, 2):  # later ones are all replays
        plain = engine_of(model).play(jobs_of(6, 4), seed=seed)
        check_same(plain, engine.play(jobs_of(6, 4), seed=seed), model=model, seed=seed)
    assert recorder.replayed > recorder.made > 0


def test_a_step_is_recorded_once_for_each_shape(sizes):
    engine, recorder = recording()
    engine.play(jobs_of(4, 4), seed=0)
    engine.play(jobs_of(4, 4), seed=0)
    made = recorder.made
    engine.play(jobs_of(4, 4), seed=0)
    assert recorder.made == made


def test_weights_that_change_in_place_need_no_new_recording():
    model = tiny_model()
    limits = Limits(max_turns=1, max_new_tokens=24)  # one size: longer plays would need others
    engine, recorder = recording(model, limits=limits)
    before = engine.play(jobs_of(2, 4), seed=0)
    made = recorder.made
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    after = engine.play(jobs_of(2, 4), seed=0)
    assert recorder.made == made
    assert [r.completion_ids for r in after] != [r.completion_ids for r in before]
    check_same(engine_of(model, limits=limits).play(jobs_of(2, 4), seed=0), after, model=model)


def moved_elsewhere(model):
    for weight in model.parameters():
        weight.data = weight.data * 1.01


def hooked(model):
    model.register_forward_hook(lambda module, args, output: None)


@pytest.mark.parametrize("change", [moved_elsewhere, hooked])
def test_other_addresses_and_hooks_are_recorded_anew(change):
    model = tiny_model()
    engine, recorder = recording(model)
    engine.play(jobs_of(2, 4), seed=0)
    made = recorder.made
    change(model)
    played = engine.play(jobs_of(2, 4), seed=0)
    assert recorder.made > made
    check_same(engine_of(model).play(jobs_of(2, 4), seed=0), played, model=model)


def test_asking_for_gradients_anew_needs_no_new_recording():
    model = tiny_model()
    before = setting(model)
    for _ in range(2):  # as TRL does around every batch, with gradient checkpointing
        model.enable_input_require_grads()
        assert model.get_input_embeddings()._forward_hooks
        assert setting(model) == before


@pytest.mark.parametrize("change", ["disable", "merge", "scale"])
def test_adapters_that_change_are_recorded_anew(change):
    model = lora_on(tiny_model())
    engine, recorder = recording(model)
    plain = engine.play(jobs_of(2, 4), seed=0)
    made = recorder.made
    if change == "disable":
        model.base_model.disable_adapter_layers()
    elif change == "merge":
        model.merge_adapter()
    else:
        for module in model.modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module.scaling["default"] *= 0.1
    played = engine.play(jobs_of(2, 4), seed=0)
    assert recorder.made > made
    check_same(engine_of(model).play(jobs_of(2, 4), seed=0), played)
    same = [r.completion_ids for r in plain] == [r.completion_ids for r in played]
    assert same == (change == "merge")


def test_other_sampling_is_recorded_anew():
    engine, recorder = recording()
    engine.play(jobs_of(2, 4), seed=0)
    made = recorder.made
    engine.sampling = replace(engine.sampling, temperature=0.5)
    played = engine.play(jobs_of(2, 4), seed=0)
    assert recorder.made > made
    check_same(engine_of(sampling=engine.sampling).play(jobs_of(2, 4), seed=0), played)


def test_what_cannot_be_recorded_is_run_with_one_notice(capsys, sizes):
    def refuse(count):
        raise RuntimeError("operation not permitted\x1b[2J when stream is capturing\nmore")

    engine, recorder = recording(failing=refuse)
    played = [engine.play(jobs_of(4, 4), seed=seed) for seed in (0, 1)]
    check_same(engine_of().play(jobs_of(4, 4), seed=1), played[1])
    notice = capsys.readouterr().err
    assert notice.count("flatline:") == 1
    assert "operation not permitted" in notice
    assert "\x1b" not in notice
    assert recorder.replayed == 0


def test_a_recording_that_fails_half_way_leaves_the_turn_alone(capsys):
    class Breaking(Recorder):
        def __call__(self, step):
            step()
            raise RuntimeError("no")

    engine, _ = recording()
    engine._loop.graphs = Graphs(Breaking(engine))
    check_same(engine_of().play(jobs_of(4, 4), seed=0), engine.play(jobs_of(4, 4), seed=0))


def test_old_recordings_make_room_for_new_ones(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(f"flatline.rollout.static.{name}", value)
    refused = []

    def full_once(count):
        if count == 1 and not refused:
            refused.append(count)
            raise torch.OutOfMemoryError

    engine, _ = recording(failing=full_once)
    check_same(engine_of().play(jobs_of(6, 4), seed=0), engine.play(jobs_of(6, 4), seed=0))
    assert refused


def test_no_room_for_a_recording_says_what_to_type():
    def full(count):
        raise torch.OutOfMemoryError

    engine, _ = recording(failing=full)
    with pytest.raises(ModelError, match="--max-context"):
        engine.play(jobs_of(4, 2), seed=0)
    assert engine._loop._cache is None


def test_where_memory_runs_out_half_as_many_are_played_on(capsys, monkeypatch):
    model, finished = tiny_model(), []
    engine = engine_of(model, static=True)
    reserve = StaticCache.reserve

    def too_large(cache, tokens):
        if cache.slots > 8 and tokens > 500:  # some plays have ended by then
            raise torch.OutOfMemoryError
        reserve(cache, tokens)

    monkeypatch.setattr(StaticCache, "reserve", too_large)
    played = engine.play(jobs_of(6, 4), seed=0, on_done=finished.append)
    check_same(engine_of(model).play(jobs_of(6, 4), seed=0), played, model=model)
    assert sorted(map(id, finished)) == sorted(map(id, played)), "each ends once"
    assert engine.max_batch == 6, "twice"
    notices = capsys.readouterr().err
    assert "24 rollouts" in notices and "--max-batch 6" in notices


def test_sizes_come_two_an_octave():
    asked = [1, 256, 257, 384, 385, 512, 600, 769, 4097, 6144, 6145]
    given = [256, 256, 384, 384, 512, 512, 768, 1024, 6144, 6144, 8192]
    assert list(map(columns, asked)) == given
    assert [height(n, 96) for n in (1, 9, 64, 65, 96)] == [8, 16, 64, 96, 96]


def test_a_cache_that_was_let_go_is_made_in_the_size_that_it_had(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(f"flatline.rollout.static.{name}", value)
    monkeypatch.setattr(Static, "_is_too_much", lambda self, device: True)
    engine, recorder = recording()
    engine.play(jobs_of(4, 4), seed=0)
    assert engine._loop._cache is None
    first, recorder.made = recorder.made, 0
    again = engine.play(jobs_of(4, 4), seed=0)
    assert 0 < recorder.made < first, "nothing grew, so nothing was recorded twice"
    check_same(engine_of().play(jobs_of(4, 4), seed=0), again)


def test_broken_weights_leave_nothing_behind_in_the_cache():
    model = tiny_model()
    engine, _ = recording(model)
    weight = next(model.parameters())
    good = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="NaN"):
        engine.play(jobs_of(4, 2), seed=0)
    with torch.no_grad():
        weight.copy_(good)
    check_same(engine_of(model).play(jobs_of(4, 2), seed=0), engine.play(jobs_of(4, 2), seed=0))


# -- precision


def test_weights_cast_beforehand_give_what_autocast_gives(monkeypatch):
    model = lora_on(tiny_model())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine = engine_of(model, static=True)
        ahead = engine.play(jobs_of(4, 4), seed=0)
        assert engine._loop._casts.nbytes > 0
        monkeypatch.setattr(Casts, "used", lambda self: nullcontext())
        each_step = engine_of(model, static=True).play(jobs_of(4, 4), seed=0)
    assert [r.completion_ids for r in ahead] == [r.completion_ids for r in each_step]
    assert [r.logprobs for r in ahead] == [r.logprobs for r in each_step]


def test_casts_follow_the_weights_and_leave_them_in_place():
    model = lora_on(tiny_model())
    weights = dict(model.named_parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine = engine_of(model, static=True)
        before = engine.play(jobs_of(2, 4), seed=0)
        with torch.no_grad():
            for name, weight in weights.items():
                if "lora_B" in name:
                    weight += 0.5
        after = engine.play(jobs_of(2, 4), seed=0)
        fresh = engine_of(model, static=True).play(jobs_of(2, 4), seed=0)
    assert [r.completion_ids for r in after] == [r.completion_ids for r in fresh]
    assert [r.completion_ids for r in after] != [r.completion_ids for r in before]
    now = dict(model.named_parameters())
    assert all(now[name] is weight for name, weight in weights.items())


def test_weights_are_back_when_a_turn_fails(monkeypatch):
    model = lora_on(tiny_model())
    weights = list(model.parameters())

    def broken(*args, **kwargs):
        raise RuntimeError("broken")

    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine = engine_of(model, static=True)
        monkeypatch.setattr("flatline.rollout.table.forward", broken)
        with pytest.raises(RuntimeError, match="broken"):
            engine.play(jobs_of(2, 2), seed=0)
    assert all(a is b for a, b in zip(weights, model.parameters(), strict=True))
    assert model.get_base_model().config._attn_implementation == "sdpa"


def test_without_autocast_nothing_is_cast():
    assert Casts(tiny_model()).nbytes == 0


def test_a_model_can_be_trained_after_static_play():
    model = tiny_model()
    engine_of(model, static=True, chat=CHAT, limits=LIMITS).play(jobs_of(1, 2), seed=0)
    ids = torch.tensor([[5, 6, 7, 8]])
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_training_step_needs_no_new_recording(tmp_path, monkeypatch):
    """Weights, hooks and flags are the same whenever the trainer lets the engine play."""
    made = []

    class Noting(Static):
        @contextmanager
        def playing(self, model):
            made.append(setting(model))
            with super().playing(model):
                yield

    monkeypatch.setattr("flatline.rollout.engine.Static", Noting)
    monkeypatch.setattr("flatline.training.rollouts.Engine", partial(Engine, static=True))
    config = RunConfig(
        datasets="lab,,train[:8]",
        eval_limit=0,
        batch_size=4,
        num_generations=2,
        max_steps=2,
        max_turns=2,
        max_new_tokens=16,
        sampler_weights="live",
        output_dir=str(tmp_path),
    )
    trainer = build(config).trainer
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    pairs = zip(before, trainer.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    assert len(made) == 2 and made[0] == made[1]


# -- on a GPU

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
@pytest.mark.parametrize("make", [tiny_model, lambda: lora_on(tiny_model())], ids=["all", "LoRA"])
def test_a_gpu_replays_what_it_would_compute(make, capsys):
    model = make().cuda()
    engine = engine_of(model)
    for seed in (0, 1):
        plain = engine_of(model, static=False).play(jobs_of(12, 4), seed=seed)
        check_same(plain, engine.play(jobs_of(12, 4), seed=seed))
        with torch.no_grad():
            for weight in model.parameters():
                weight *= 1.01
    assert engine._loop.graphs._replays
    assert not capsys.readouterr().err


@on_gpu
def test_a_gpu_that_cannot_record_plays_on(capsys):
    model = tiny_model().cuda()
    model.register_forward_hook(lambda module, args, output: output.logits.sum().item() and None)
    played = engine_of(model).play(jobs_of(4, 4), seed=0)
    check_same(engine_of(model, static=False).play(jobs_of(4, 4), seed=0), played)
    assert capsys.readouterr().err.count("cannot be recorded") == 1


@on_gpu
def test_autocast_on_a_gpu_follows_the_weights():
    model = lora_on(tiny_model()).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        engine = engine_of(model)
        engine.play(jobs_of(4, 4), seed=0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight += 0.5
        after = engine.play(jobs_of(4, 4), seed=0)
        fresh = engine_of(model).play(jobs_of(4, 4), seed=0)
    assert [r.completion_ids for r in after] == [r.completion_ids for r in fresh]
