"""`flatline.watch`: what hooks on a model and its optimizer tell of a loop."""

import copy
import importlib
import io

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import flatline
from flatline.errors import ConfigError, ModelError, TraceError
from flatline.hypotheses.base import ALARMS, Level
from flatline.live.watch import passes, rows
from flatline.live.watch.gradient import Pass
from flatline.live.watch.sampling import Sample
from flatline.rollout.record import Author
from tests.loops.engine import Bare
from tests.loops.lab import load_policy, problems
from tests.tiny import tiny_model

END = 7


class NobodyWatches:
    def rewards(self, *args, **kwargs):
        pass


def model_of(**changes):
    return tiny_model(vocab=60, eos_token_id=END, pad_token_id=0, **changes)


def adam(model, **changes):
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **changes})


def sgd(model, **changes):
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-3, **changes})


def batch(rows=4, length=12, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(10, 60, (rows, length), generator=drawn)


def logprobs(model, ids, temperature=1.0, **inputs):
    logits = model(input_ids=ids, **inputs).logits[:, :-1] / temperature
    return logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]


def a_step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(loop, model, optimizer, watch, tokenizer, *, steps, defect=False):
    torch.manual_seed(0)
    asked = problems(tokenizer, 4 * steps)
    module = importlib.import_module(f"tests.loops.{loop}")
    module.train(model, tokenizer, optimizer, asked, watch, steps=steps, defect=defect)


def policy_of(loop):
    causal, tokenizer = load_policy()
    return (Bare(causal) if loop == "engine" else causal), tokenizer


def watched(loop, folder, *, steps, defect=False):
    model, tokenizer = policy_of(loop)
    optimizer = adam(model, lr=1e-4)
    with flatline.watch(model, optimizer, folder, tokenizer=tokenizer) as watch:
        train(loop, model, optimizer, watch, tokenizer, steps=steps, defect=defect)
    return model, flatline.Trace.open(folder)


LOOPS = ("notebook", "padded", "engine")
NAMED = {"notebook": {"H02"}, "padded": {"H02", "H09"}, "engine": {"H02"}}


@pytest.mark.parametrize("loop", ("padded", "engine"))
def test_the_defect_of_a_loop_is_named_by_its_watched_run(loop, tmp_path):
    _, trace = watched(loop, tmp_path, steps=3, defect=True)
    alarms = {one.hypothesis for one in flatline.diagnose(trace).findings if one.level in ALARMS}
    assert alarms == NAMED[loop]


ANSWERED = (
    *("H01", "H02", "H04", "H05", "H06", "H07", "H09", "H10", "H11", "H12", "H13", "H14", "H15"),
    *("H16", "H17", "H20", "H23", "H25", "H26", "H27", "H32", "H33", "H34", "H35", "H42"),
)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_healthy_loop_raises_no_alarm_and_trains_the_same_weights_as_without_a_watch(
    loop, tmp_path
):
    model, trace = watched(loop, tmp_path, steps=3)
    findings = flatline.diagnose(trace).findings
    assert [one for one in findings if one.level in ALARMS] == []
    assert not trace.caveats
    if loop == "notebook":
        answered = {one.hypothesis for one in findings if one.level is not Level.UNKNOWN}
        assert set(ANSWERED) - answered == set()
    tokens = trace.tokens([1])
    known = tokens.trained & np.isfinite(tokens.trainer)
    assert known.sum() > 50 and (tokens.author[known] == Author.MODEL).all()
    assert np.abs(tokens.sampler - tokens.trainer)[known].max() < 1e-4
    assert (trace.rollouts["weight_version"][trace.rollouts["step"] == 1] == 0).all()
    alone, tokenizer = policy_of(loop)
    train(loop, alone, adam(alone, lr=1e-4), NobodyWatches(), tokenizer, steps=3)
    pairs = zip(model.state_dict().items(), alone.state_dict().values(), strict=True)
    assert [name for (name, a), b in pairs if not torch.equal(a, b)] == []


def test_the_weight_of_a_token_is_advantage_over_length_and_batch(tmp_path):
    model, ids = model_of(), batch()
    advantage = torch.tensor([1.5, -0.5, 0.25, -1.25])
    mask = torch.zeros(4, 11)
    for row, length in enumerate((3, 5, 2, 4)):
        mask[row, 6 : 6 + length] = 1
    optimizer = sgd(model)
    with flatline.watch(model, optimizer, tmp_path):
        per_row = (logprobs(model, ids) * mask * advantage[:, None]).sum(1) / mask.sum(1)
        a_step(optimizer, -per_row.mean())
    tokens = flatline.Trace.open(tmp_path).tokens()
    expected = (advantage[:, None] / mask.sum(1, keepdim=True) / 4).expand_as(mask)[mask > 0]
    assert (tokens.ids == ids[:, 1:][mask > 0].numpy()).all()
    assert np.abs(tokens.weight / expected.numpy() - 1).max() < 1e-5


def test_a_temperature_that_the_loss_divides_logits_by_is_recovered(tmp_path):
    model, optimizer = model_of(), None
    optimizer = sgd(model, lr=0.0)
    with flatline.watch(model, optimizer, tmp_path):
        for step in range(2):
            a_step(optimizer, -0.5 * logprobs(model, batch(seed=step), temperature=0.7).sum())
    trace = flatline.Trace.open(tmp_path)
    assert trace.settings["temperature"] == pytest.approx(0.7, abs=1e-3)
    assert "temperature of 0.7" in trace.caveats[0]
    assert np.abs(trace.tokens([2]).weight - 0.5).max() < 0.5 * 1e-3


def with_an_entropy_bonus(model):
    every = model(input_ids=batch()).logits.log_softmax(-1)
    return (every.exp() * every).sum(-1).mean() - logprobs(model, batch()).mean()


def with_labels_that_are_not_shifted(model):
    return cross_entropy(model(input_ids=batch()).logits.flatten(0, 1), batch().flatten())


@pytest.mark.parametrize(
    ("loss", "changes", "told"),
    [
        (with_an_entropy_bonus, {}, "no push on a token"),
        (with_labels_that_are_not_shifted, {}, "not shifted by one"),
        (lambda model: -logprobs(model, batch()).mean(), {"maximize": True}, "up the gradient"),
    ],
    ids=["a bonus", "labels", "maximize"],
)
def test_a_loss_that_is_no_push_on_its_own_tokens_is_said(loss, changes, told, tmp_path):
    model = model_of()
    optimizer = sgd(model, **changes)
    with flatline.watch(model, optimizer, tmp_path):
        for _ in range(3):
            a_step(optimizer, loss(model))
    assert told in flatline.Trace.open(tmp_path).caveats[0]


def test_a_penalty_on_the_sampled_token_alone_is_part_of_its_weight(tmp_path):
    model = model_of()
    optimizer = sgd(model)
    with flatline.watch(model, optimizer, tmp_path):
        new = logprobs(model, batch())
        away = new.detach() - 0.3 - new
        a_step(optimizer, -new.mean() + 0.1 * (away.exp() - away - 1).mean())
    trace = flatline.Trace.open(tmp_path)
    assert trace.caveats == []
    assert trace.metric("gradient_of_other_form")[0] < 1e-4


def by_generate(model, prompt, mask):
    return model.generate(
        input_ids=prompt, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=9
    )


def by_hand(model, prompt, mask, *, cache):
    ids, given, past = prompt, prompt, None
    done = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(9):
        positions = (mask.cumsum(1) - 1).clamp_min(0)[:, -given.shape[1] :]
        out = model(
            input_ids=given,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=cache,
        )
        token = torch.multinomial(out.logits[:, -1].softmax(-1), 1)
        token[done] = 0
        done |= token[:, 0] == END
        ids = torch.cat([ids, token], dim=1)
        mask = torch.cat([mask, torch.ones_like(token)], dim=1)
        given, past = (token, out.past_key_values) if cache else (ids, None)
    return ids


SAMPLERS = {
    "generate": by_generate,
    "with a cache": lambda *given: by_hand(*given, cache=True),
    "without one": lambda *given: by_hand(*given, cache=False),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_every_sampled_token_has_the_logprob_it_was_drawn_with(sampler, tmp_path):
    model = model_of()
    optimizer = sgd(model)
    torch.manual_seed(0)
    prompt, mask = batch(6, 8), torch.ones(6, 8, dtype=torch.long)
    prompt[::2, :3], mask[::2, :3] = 0, 0
    with flatline.watch(model, optimizer, tmp_path) as watch:
        with torch.no_grad():
            ids = sampler(model, prompt, mask)
        watch.rewards(range(6))
        seen = torch.cat([mask, torch.ones_like(ids[:, 8:])], dim=1)
        positions = (seen.cumsum(1) - 1).clamp_min(0)
        found = logprobs(model, ids, attention_mask=seen, position_ids=positions)
        ended = (ids[:, 8:] == END).int()
        kept = ended.cumsum(1) - ended == 0
        a_step(optimizer, -(found[:, 7:] * kept).sum())
    trace = flatline.Trace.open(tmp_path)
    tokens = trace.tokens()
    assert len(tokens) == int(kept.sum())
    assert (tokens.author == Author.MODEL).all() and tokens.trained.all()
    assert np.abs(tokens.sampler - found[:, 7:][kept].detach().numpy()).max() < 1e-4
    assert trace.rollouts["reward"].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(tokens.prompt_ids) == int(mask.sum())


def test_what_a_tool_says_between_two_turns_is_not_the_models(tmp_path):
    model = tiny_model(vocab=60)  # nothing ends a turn but its length
    optimizer = sgd(model)
    torch.manual_seed(0)
    with flatline.watch(model, optimizer, tmp_path) as watch:
        first = by_generate(model, batch(2, 8), torch.ones(2, 8, dtype=torch.long))
        asked = torch.cat([first, batch(2, 5, seed=1)], dim=1)
        whole = by_generate(model, asked, torch.ones_like(asked))
        watch.rewards([0.0, 1.0])
        a_step(optimizer, -logprobs(model, whole)[:, 7:].sum())
    trace = flatline.Trace.open(tmp_path)
    tokens = trace.tokens()
    assert len(trace.rollouts) == 2 and trace.rollouts["reward"].tolist() == [0.0, 1.0]
    said = [tokens.author[tokens.row == row].tolist() for row in (0, 1)]
    lengths = [first.shape[1] - 8, 5, whole.shape[1] - asked.shape[1]]
    for authors in said:
        assert authors[: lengths[0]].count(Author.MODEL) == lengths[0]
        assert authors[lengths[0] : sum(lengths[:2])] == [Author.TOOL] * 5
    assert flatline.diagnose(trace).findings[0].hypothesis == "H02"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_advantages_and_precision_are_read_from_weights_and_logits(dtype, tmp_path):
    model = model_of().to(dtype)
    optimizer = sgd(model)
    torch.manual_seed(0)
    given = torch.tensor([1.5, -0.5, 0.5, -1.5])
    with flatline.watch(model, optimizer, tmp_path) as watch:
        ids = by_generate(model, batch(1, 8).repeat(4, 1), torch.ones(4, 8, dtype=torch.long))
        watch.rewards(given)
        ended = (ids[:, 8:] == END).int()
        kept = ended.cumsum(1) - ended == 0
        gain = logprobs(model, ids)[:, 7:].float() * kept * given[:, None]
        a_step(optimizer, -(gain.sum(1) / kept.sum(1)).mean())
    trace = flatline.Trace.open(tmp_path)
    assert np.abs(trace.rollouts["advantage"] - given.numpy()).max() < 0.02
    assert trace.settings["precision"] == str(dtype).removeprefix("torch.")


def test_gradients_are_recorded_as_they_were_before_they_were_clipped(tmp_path):
    model = model_of()
    optimizer = sgd(model)
    with flatline.watch(model, optimizer, tmp_path):
        for seed in range(2):
            optimizer.zero_grad()
            (-logprobs(model, batch(seed=seed)).sum()).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
    trace = flatline.Trace.open(tmp_path)
    assert trace.steps["grad_norm"][-1] == pytest.approx(float(norm), rel=1e-4)
    assert trace.settings["max_grad_norm"] == 0.25
    assert (trace.weights["update_norm"] > 0).all()


def test_tensors_that_the_optimizer_lacks_or_that_get_no_gradient_are_named(tmp_path):
    model = model_of(tie_word_embeddings=False)
    model.idle = torch.nn.Linear(3, 3)
    held = [w for name, w in model.named_parameters() if "layers.1" not in name]
    optimizer = torch.optim.SGD(held, lr=1e-3)
    with flatline.watch(model, optimizer, tmp_path):
        a_step(optimizer, -logprobs(model, batch()).sum())
    trace = flatline.Trace.open(tmp_path)
    assert "does not hold 12 trainable tensors" in trace.caveats[0]
    assert "2 tensors that the optimizer holds never had a gradient" in trace.caveats[1]
    lost = trace.weights["name"][trace.weights["in_optimizer"] == 0]
    assert all("layers.1" in name for name in lost)


def fused(model, ids):
    hidden = model.model(input_ids=ids).last_hidden_state
    return cross_entropy(
        (hidden[:, :-1] @ model.lm_head.weight.T).flatten(0, 1), ids[:, 1:].flatten()
    )


def one_slice(model, ids):
    hidden = model.model(input_ids=ids).last_hidden_state[:, 4:-1]
    return cross_entropy(model.lm_head(hidden).flatten(0, 1), ids[:, 5:].flatten())


@pytest.mark.parametrize("loss", [fused, one_slice], ids=lambda f: f.__name__)
def test_where_no_whole_logits_are_built_it_is_said_once_and_no_token_is_guessed(
    loss, tmp_path, capsys
):
    model = model_of()
    optimizer = sgd(model)
    with flatline.watch(model, optimizer, tmp_path):
        for seed in range(3):
            a_step(optimizer, loss(model, batch(seed=seed)))
    trace = flatline.Trace.open(tmp_path)
    told = "without calling its head" if loss is fused else "called on slices"
    assert len(trace.caveats) == 1 and told in trace.caveats[0]
    assert capsys.readouterr().err.count(told) == 1
    assert trace.caveats[0] in flatline.diagnose(trace).caveats
    assert len(trace.steps) == 3 and len(trace.rollouts) == 0


def test_an_error_in_a_hook_ends_the_recording_and_not_the_training(tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("a bug of flatline's")

    def trained(folder):
        model = model_of()
        optimizer = adam(model)
        with flatline.watch(model, optimizer, folder):
            for seed in range(2):
                a_step(optimizer, -logprobs(model, batch(seed=seed)).mean())
        return model

    whole = trained(tmp_path / "whole")
    monkeypatch.setattr(Pass, "hear", broken)
    other = trained(tmp_path / "broken")
    assert capsys.readouterr().err.count("recording stopped, training goes on") == 1
    assert "a bug of flatline's" in flatline.Trace.open(tmp_path / "broken").stopped
    pairs = zip(whole.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def hooks_on(model, optimizer):
    modules = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    weights = [len(w._post_accumulate_grad_hooks or ()) for w in model.parameters()]
    stepped = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    return sum(modules) + sum(weights) + stepped


def test_closing_takes_every_hook_off_and_a_model_can_be_watched_again(tmp_path):
    model = model_of()
    optimizer = sgd(model)
    watch = flatline.watch(model, optimizer, tmp_path / "a")
    assert hooks_on(model, optimizer)
    watch.close()
    watch.close()
    assert hooks_on(model, optimizer) == 0
    flatline.watch(model, optimizer, tmp_path / "b").close()


def test_copies_of_a_watched_model_are_not_heard(tmp_path):
    model = model_of()
    optimizer = sgd(model)
    with flatline.watch(model, optimizer, tmp_path):
        reference = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        saved = torch.load(file, weights_only=False)
        for other in (reference, saved):
            logprobs(other, batch(seed=5)).sum().backward()
        a_step(optimizer, -logprobs(model, batch()).sum())
    tokens = flatline.Trace.open(tmp_path).tokens()
    assert (tokens.ids == batch()[:, 1:].flatten().numpy()).all()


def test_passes_that_wait_for_a_step_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "WAITING", 3)
    model = model_of()
    with flatline.watch(model, sgd(model), tmp_path) as watch:
        for seed in range(5):
            logprobs(model, batch(seed=seed)).sum().backward()
        assert len(watch._passes) == 3


def a_sample(first):
    prompt = np.arange(first, first + 20, dtype=np.int32)
    return Sample(
        prompt=prompt, ids=prompt[:2], logps=np.zeros(2), ended=True, version=0, tail=None, row=0
    )


def test_samples_that_wait_to_be_trained_are_bounded(monkeypatch):
    monkeypatch.setattr(rows, "KEPT", 4)
    shelf = rows.Shelf()
    shelf.add(a_sample(first) for first in range(10))
    assert len(shelf) == len(shelf.waiting()) == 4
    assert shelf.find(np.r_[a_sample(9).prompt, a_sample(9).ids], set())
    assert not shelf.find(np.r_[a_sample(0).prompt, a_sample(0).ids], set())


def test_a_loop_that_never_steps_is_told_so(tmp_path):
    model = model_of()
    with flatline.watch(model, sgd(model), tmp_path):
        logprobs(model, batch()).sum().backward()
    report = flatline.diagnose(flatline.Trace.open(tmp_path))
    assert report.made_no_step
    assert "never stepped" in report.caveats[1] or "never stepped" in report.caveats[0]


def test_what_cannot_be_watched_is_refused_with_what_to_do(tmp_path):
    model = model_of()
    optimizer = sgd(model)
    with pytest.raises(ModelError, match="makes logits, as far as can be seen"):
        flatline.watch(model.model, optimizer, tmp_path)
    with pytest.raises(ModelError, match="needs a torch module"):
        flatline.watch("gpt2", optimizer, tmp_path)
    with pytest.raises(TraceError, match="None of the 1 tensors of this optimizer"):
        other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        flatline.watch(model, other, tmp_path)
    with pytest.raises(TraceError, match="not a torch optimizer"):
        flatline.watch(model, object(), tmp_path)
    with (
        flatline.watch(model, optimizer, tmp_path / "first"),
        pytest.raises(TraceError, match=r"watched already, into .*first"),
    ):
        flatline.watch(model, optimizer, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_rewards_without_rows_and_uneven_lists_are_refused(tmp_path):
    model = model_of()
    with flatline.watch(model, sgd(model), tmp_path) as watch:
        by_generate(model, batch(2, 8), torch.ones(2, 8, dtype=torch.long))
        with pytest.raises(TraceError, match="3 rewards for 2 rows"):
            watch.rewards([1.0, 0.0, 1.0])
        with pytest.raises(TraceError, match="`groups` has 1 entries"):
            watch.rewards([1.0, 0.0], groups=[3])
        with pytest.raises(TraceError, match="`accuracy` has 3 entries"):
            watch.rewards([1.0, 0.0], parts={"accuracy": [1, 0, 1]})


def test_rewards_of_rows_that_another_engine_sampled_are_kept_as_their_mean(tmp_path):
    model = model_of()
    optimizer = sgd(model)
    with flatline.watch(model, optimizer, tmp_path) as watch:
        for k in range(3):
            watch.rewards([float(k), 2.0])
            a_step(optimizer, -logprobs(model, batch(2, 8, seed=k))[:, 4:].sum())
    trace = flatline.Trace.open(tmp_path)
    assert trace.steps["reward"].tolist() == [1.0, 1.5, 2.0]
    assert "another engine" in trace.caveats[0]


def test_rewards_that_come_after_the_step_are_said(tmp_path):
    model = model_of()
    optimizer = sgd(model)
    with flatline.watch(model, optimizer, tmp_path) as watch:
        ids = by_generate(model, batch(2, 8), torch.ones(2, 8, dtype=torch.long))
        a_step(optimizer, -logprobs(model, ids)[:, 7:].sum())
        watch.rewards([1.0, 0.0])
    assert "before `optimizer.step()`" in flatline.Trace.open(tmp_path).caveats[0]


def test_a_token_whose_ratio_is_clipped_is_not_taken_for_one_without_loss(tmp_path):
    model = model_of()
    optimizer = sgd(model, lr=0.05)
    torch.manual_seed(0)
    with flatline.watch(model, optimizer, tmp_path) as watch:
        ids = by_generate(model, batch(8, 8), torch.ones(8, 8, dtype=torch.long))
        watch.rewards(range(8))
        with torch.no_grad():
            old = logprobs(model, ids)[:, 7:]
        ended = (ids[:, 8:] == END).int()
        kept = ended.cumsum(1) - ended == 0
        for half in (slice(0, 4), slice(4, 8)):
            ratio = (logprobs(model, ids[half])[:, 7:] - old[half]).exp()
            gain = torch.minimum(ratio, ratio.clamp(0.98, 1.02))
            a_step(optimizer, -(gain * kept[half]).mean())
    trace = flatline.Trace.open(tmp_path)
    assert (trace.tokens().trained | ~np.isfinite(trace.tokens().sampler)).all()


def test_settings_that_the_loop_knows_are_kept_and_other_names_refused(tmp_path):
    model = model_of()
    with flatline.watch(model, adam(model), tmp_path / "run", settings={"dataset_size": 64}):
        pass
    assert flatline.Trace.open(tmp_path / "run").settings["dataset_size"] == 64
    with pytest.raises(ConfigError, match="has no data_size"):
        flatline.watch(model, adam(model), tmp_path / "other", settings={"data_size": 64})
