"""Recording a live GRPOTrainer: what is in the trace, and that the trainer never notices."""

import copy
import errno
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig, GRPOTrainer

import flatline
from flatline.errors import NotRecorded, TraceError
from flatline.hypotheses import find
from flatline.hypotheses.base import Level
from flatline.hypotheses.logprobs import at_equal_weights
from flatline.live.hooks import Guard
from flatline.live.trl.recorder.heard import Generation
from flatline.live.trl.recorder.recording import Recording
from flatline.live.trl.recorder.rows import Reader, _finish
from flatline.live.trl.recorder.steps import heldout_reward
from flatline.live.trl.settings import _precision, settings
from flatline.live.trl.subject import TrlSubject
from flatline.live.weights import Census
from flatline.rollout.record import Author
from flatline.trace.files import StreamFile
from flatline.trace.writer import MemorySink
from tests import warm
from tests.tiny import tiny_model, tokenizer_with

torch.set_num_threads(1)

STOPS = list(range(0, 250, 8))
"""Tokens that end a completion of the random model, so that lengths differ."""


def letters(completions, **_):
    return [float(len(set(str(completion)))) for completion in completions]


def length(completion_ids, **_):
    return [None if len(ids) > 9 else float(len(ids)) for ids in completion_ids]


def trainer_of(folder, *, lora=False, reward_funcs=(letters, length), rows=None, **changes):
    tokenizer = tokenizer_with()
    model = tiny_model(vocab=len(tokenizer))
    model.generation_config.eos_token_id = STOPS
    source = folder / "source"
    if changes.get("beta"):
        model.save_pretrained(source)
        model.config._name_or_path = str(source)
    rows = rows or [{"prompt": f"Question {i}: " + "a" * (i % 5)} for i in range(8)]
    settings = {
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 12,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "temperature": 1.0,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "reward_weights": [1.0, 0.5][: len(reward_funcs)],
    }
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=list(reward_funcs),
        args=GRPOConfig(output_dir=str(folder / "out"), **{**settings, **changes}),
        train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
        if lora
        else None,
    )


def recorded(trainer):
    """The trace of a run, in memory."""
    sink = MemorySink()
    attachment = flatline.attach(trainer, sink)
    trainer.train()
    assert not attachment.failed
    attachment.detach()
    return sink.trace()


def weights_of(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


# -- the trainer does not notice --------------------------------------------------------------

SETUPS = {
    "full": {},
    "lora": {"lora": True},
    "kl, two passes": {"beta": 0.1, "num_iterations": 2, "max_steps": 4},
    "several generations per step": {"gradient_accumulation_steps": 2, "steps_per_generation": 1},
    "steps across generations": {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
    "truncated left out": {"mask_truncated_completions": True},
    "checkpointed, no clipping": {"gradient_checkpointing": True, "max_grad_norm": 0.0},
}


@pytest.fixture(scope="module", params=SETUPS)
def watched(request, tmp_path_factory):
    """A training in each setup, recorded in memory."""
    trainer = trainer_of(tmp_path_factory.mktemp("watched"), **SETUPS[request.param])
    torch.manual_seed(3)
    trace = recorded(trainer)
    drawn = torch.random.get_rng_state()
    return SimpleNamespace(name=request.param, trainer=trainer, trace=trace, drawn=drawn)


def test_weights_are_the_same_with_and_without_recording(tmp_path, watched):
    plain = trainer_of(tmp_path, **SETUPS[watched.name])
    torch.manual_seed(3)
    plain.train()
    assert torch.equal(watched.drawn, torch.random.get_rng_state()), "no random number was drawn"
    assert len(watched.trace.steps) == watched.trainer.state.global_step
    expected = weights_of(plain)
    assert all(torch.equal(expected[n], p) for n, p in weights_of(watched.trainer).items())


def test_a_method_that_is_replaced_while_it_is_listened_to_stays_replaced(tmp_path):
    """A curriculum may change the trainer from inside a reward function."""
    calls = []

    def replaces(completions, **_):
        if not calls:
            inner = trainer._calculate_rewards
            trainer._calculate_rewards = lambda *args: calls.append("theirs") or inner(*args)
        calls.append("reward")
        return [0.0] * len(completions)

    trainer = trainer_of(tmp_path, reward_funcs=[replaces], max_steps=3)
    assert len(recorded(trainer).rollouts) == 12
    assert calls == ["reward", *("theirs", "reward") * 2]


def test_the_log_prob_of_every_sampled_token_is_that_of_the_trainer(watched):
    gap = at_equal_weights(watched.trace).gap
    assert len(gap) and np.abs(gap).max() < 1e-4
    assert (watched.trace.rollouts["as_sampled"] == 1).all()


def test_every_rollout_has_its_tokens_and_whole_groups(watched):
    trainer, trace = watched.trainer, watched.trace
    generations = trainer._step / (trainer.args.steps_per_generation * trainer.num_iterations)
    expected = -(-generations // 1) * trainer.args.steps_per_generation * 4
    assert len(trace.rollouts) == expected
    keys = list(zip(trace.rollouts["step"], trace.rollouts["rollout"], strict=True))
    assert len(set(keys)) == len(keys), "every rollout is recorded once"
    assert (trace.groups().size == 4).all()
    assert len({tuple(set(p)) for p in trace.groups().each("prompt_id") if len(set(p)) > 1}) == 0
    tokens = trace.tokens()
    assert len(tokens.ids) == trace.rollouts["completion_tokens"].sum()


def test_detaching_leaves_the_trainer_as_it_was(tmp_path):
    trainer = trainer_of(tmp_path)
    before, callbacks = dict(vars(trainer)), list(trainer.callback_handler.callbacks)
    clip = dict(vars(trainer.accelerator))
    flatline.attach(trainer, MemorySink()).detach()
    assert dict(vars(trainer)) == before
    assert dict(vars(trainer.accelerator)) == clip
    assert trainer.callback_handler.callbacks == callbacks


def test_a_copy_of_a_recorded_trainer_trains_by_itself_and_is_not_recorded(tmp_path):
    trainer, plain = trainer_of(tmp_path / "a"), trainer_of(tmp_path / "b")
    sink = MemorySink()
    flatline.attach(trainer, sink)
    twins, before = [copy.deepcopy(one) for one in (trainer, plain)], weights_of(trainer)
    for twin in twins:
        torch.manual_seed(3)
        twin.train()
    assert all(torch.equal(before[n], p) for n, p in weights_of(trainer).items())
    copied, expected = map(weights_of, twins)
    assert all(torch.equal(copied[n], p) for n, p in expected.items())
    assert not len(sink.trace().steps)
    trainer.train()
    assert len(sink.trace().steps) == 2, "the first is recorded, and once"


def test_advantages_of_tokens_are_averaged_over_those_that_carry_loss(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=1)
    play = trainer._generate_and_score_completions

    def by_token(rows):
        found = play(rows)
        found["advantages"] = torch.where(found["completion_mask"].bool(), 0.5, 99.0)
        return found

    trainer._generate_and_score_completions = by_token
    subject = TrlSubject(trainer)
    assert np.allclose(subject.one_step().advantage, 0.5)
    assert np.allclose(subject.batch.advantage_R, 0.5)
    assert np.allclose(recorded(trainer).rollouts["advantage"], 0.5)


def test_detaching_keeps_what_others_replaced_before_and_since(tmp_path):
    trainer = trainer_of(tmp_path)
    theirs = trainer._compute_loss
    trainer._compute_loss = lambda *a, **k: theirs(*a, **k)
    before = trainer._compute_loss
    attachment = flatline.attach(trainer, MemorySink())
    inner = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda *a, **k: inner(*a, **k)
    since = trainer._generate_and_score_completions
    attachment.detach()
    assert trainer._compute_loss is before
    assert trainer._generate_and_score_completions is since
    trainer.train()


@pytest.mark.parametrize(
    ("error", "dies"), [(ValueError("no `answer`"), True), (KeyboardInterrupt(), False)]
)
def test_a_training_that_died_in_its_reward_function_is_not_called_sound(tmp_path, error, dies):
    calls = []

    def pay(completions, **_):
        calls.append(1)
        if len(calls) == 3:
            raise error
        return [float(len(one)) for one in completions]

    trainer = trainer_of(tmp_path, max_steps=4, reward_funcs=(pay,))
    flatline.attach(trainer, tmp_path / "run")
    with pytest.raises(type(error)):
        trainer.train()
    trace = flatline.Trace.open(tmp_path / "run")
    assert (trace.ending.step, trace.ending.kind) == (2, type(error).__name__)
    file, _, line = trace.ending.where.rpartition(":")
    assert file == __file__ and "raise error" in Path(file).read_text().splitlines()[int(line) - 1]
    headline = flatline.diagnose(trace).answer.headline
    assert ("died after step 2 with an error: `ValueError: no 'answer'`" in headline) is dies
    assert "Nothing wrong" not in headline or not dies
    trainer.train()
    again = flatline.Trace.open(tmp_path / "run")
    assert again.ending is None and again.stopped is None and len(again.steps) == 4


def test_a_recording_that_the_disk_ended_is_not_said_to_be_whole(tmp_path, monkeypatch, capsys):
    trainer = trainer_of(tmp_path)
    flatline.attach(trainer, tmp_path / "run")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StreamFile, "append", full)
    trainer.train()
    said = capsys.readouterr().err
    assert trainer.state.global_step == 2
    assert f"recorded in {tmp_path / 'run'}. Next" not in said
    assert f"recorded in {tmp_path / 'run'}, before the end of step 1 only, where the" in said


@pytest.mark.parametrize("watched", ["kl, two passes"], indirect=True)
def test_a_folder_holds_what_memory_holds(tmp_path, watched):
    in_memory, written = watched.trace, trainer_of(tmp_path, **SETUPS[watched.name])
    flatline.attach(written, tmp_path / "run")
    torch.manual_seed(3)
    written.train()
    on_disk = flatline.Trace.open(tmp_path / "run")
    for column in ("step", "rollout", "group", "reward", "advantage", "completion", "prompt"):
        np.testing.assert_array_equal(in_memory.rollouts[column], on_disk.rollouts[column])
    for column in ("step", "loss", "grad_norm", "reward", "ratio_max"):
        np.testing.assert_array_equal(in_memory.steps[column], on_disk.steps[column])
    ours, theirs = in_memory.tokens(), on_disk.tokens()
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.trainer, theirs.trainer)
    assert len(in_memory.weights) == len(on_disk.weights)


def test_an_error_of_the_training_passes_through_and_what_was_sampled_is_kept(tmp_path):
    trainer = trainer_of(tmp_path)
    inner = trainer._compute_loss

    def breaks(*args, **kwargs):
        if trainer.state.global_step == 1:
            raise ValueError("out of memory")
        return inner(*args, **kwargs)

    trainer._compute_loss = breaks
    sink = MemorySink()
    attachment = flatline.attach(trainer, sink)
    with pytest.raises(ValueError, match="out of memory"):
        trainer.train()
    attachment.flush()
    trace = attachment.trace
    assert trace.rollouts["step"].tolist() == [1] * 4 + [2] * 4
    assert len(trace.tokens(steps=[2]).ids) and not attachment.failed


@pytest.mark.parametrize("thing", [object(), torch.nn.Linear(1, 1)])
def test_what_is_no_grpo_trainer_is_refused(thing):
    with pytest.raises(TraceError, match=r"no method that scores.*\n.*\n.*flatline.watch"):
        flatline.attach(thing, MemorySink())


def test_a_trainer_that_hands_its_batches_on_in_a_form_of_its_own_is_refused(tmp_path):
    """As ms-swift's does; tests/quality/test_trl_family.py has the real one."""
    trainer = trainer_of(tmp_path)
    trainer._compute_loss = lambda model, model_inputs, grpo_batch, origin_data=None: None
    for ask in (lambda: flatline.attach(trainer, MemorySink()), lambda: flatline.checkup(trainer)):
        with pytest.raises(
            flatline.FlatlineError, match=r"replaces its inside(.*\n){2}.*flatline.watch"
        ):
            ask()


def test_rewards_that_are_heard_function_by_function_stand_where_trl_gathers_them():
    """TRL before 0.19 asks each function in the middle of a longer method."""
    one = Generation(step=1, weights=0, first=0, rows=[{}, {}])
    one.hear_payments({0: [1.0, None]}, rewards=2, rank=1)
    nan = np.nan
    expected = [[nan, nan], [nan, nan], [1.0, nan], [nan, nan]]
    assert np.array_equal(one.rewards, expected, equal_nan=True)


# -- what is in the trace ---------------------------------------------------------------------


def test_token_facts_are_those_of_a_plain_forward_pass(tmp_path):
    trainer = trainer_of(tmp_path, beta=0.1, max_steps=1, learning_rate=0.0)
    trace = recorded(trainer)
    tokens = trace.tokens()
    texts = [trace.rollouts[name][tokens.rollout_rows] for name in ("prompt", "completion")]
    for row in range(len(trace.rollouts)):
        prompt = tokens.prompt_ids[tokens.prompt_row == row].astype(int).tolist()
        ids = tokens.ids[tokens.row == row].astype(int).tolist()
        with torch.no_grad():
            logits = trainer.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logps = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()
        assert np.allclose(tokens.trainer[tokens.row == row], logps, atol=1e-5)
        assert np.allclose(tokens.reference[tokens.row == row], logps, atol=1e-5)
        decoded = [trainer.processing_class.decode(part) for part in (prompt, ids)]
        assert decoded == [text[row] for text in texts]
    assert trace.steps["kl"].tolist() == pytest.approx([0.0], abs=1e-6)


def test_rewards_parts_and_advantages_are_trls(tmp_path):
    trainer = trainer_of(tmp_path, gradient_accumulation_steps=2)
    trace = recorded(trainer)
    parts = trace.parts()
    reward = trace.rollouts["reward"]
    expected = parts["letters"] + 0.5 * np.nan_to_num(parts["length"])
    assert np.allclose(reward, expected)
    assert np.isnan(parts["length"]).any(), "a function that gives None has no part"
    for rewards, advantages in zip(
        trace.groups().each("reward"), trace.groups().each("advantage"), strict=True
    ):
        spread = rewards.std(ddof=1) + 1e-4
        assert np.allclose(advantages, (rewards - rewards.mean()) / spread, atol=1e-4)
    by_step = [reward[trace.rollouts["step"] == step].mean() for step in (1, 2)]
    assert np.allclose(trace.steps["reward"], by_step)
    within = np.array([rewards.std(ddof=1) for rewards in trace.groups().each("reward")])
    expected = [within[trace.groups().step == step].mean() for step in (1, 2)]
    assert np.allclose(trace.steps["reward_std_within"], expected)


def test_steps_hold_what_the_trainer_logged_and_what_it_did_not(tmp_path):
    trainer = trainer_of(tmp_path, logging_steps=2, max_steps=4, learning_rate=1e-3)
    trace = recorded(trainer)
    assert trace.steps["step"].tolist() == [1, 2, 3, 4]
    rates = 1e-3 * np.array([1.0, 0.75, 0.5, 0.25])
    assert np.allclose(trace.steps["learning_rate"], rates), "the rate in force in each step"
    assert np.isfinite(trace.steps["grad_norm"]).all()
    logged = trace.metric("grad_norm")
    assert np.isnan(logged[[0, 2]]).all()
    assert np.allclose(logged[[1, 3]], trace.steps["grad_norm"][[1, 3]])
    assert np.allclose(trace.metric("entropy")[1], trace.steps["entropy"][:2].mean(), rtol=0.2)
    parts = [trace.steps[f"seconds_{part}"] for part in ("sampling", "scoring", "backward")]
    assert all((part >= 0).all() for part in parts)
    assert (sum(parts) <= trace.steps["seconds"] + 1e-6).all()


def test_only_the_first_pass_over_a_batch_is_recorded_but_every_step_is(tmp_path):
    trace = recorded(trainer_of(tmp_path, num_iterations=2, max_steps=4))
    assert sorted(set(trace.rollouts["step"])) == [1, 3]
    assert trace.steps["ratio_max"][0] == pytest.approx(0, abs=1e-5)
    assert trace.steps["ratio_max"][1] > 1e-3, "the second pass has moved away from the sampler"
    assert np.isnan(trace.steps["reward"][[1, 3]]).all(), "no new rollouts, no new reward"
    tokens = trace.tokens()
    assert np.allclose(tokens.old, tokens.trainer, atol=1e-5)


def test_weights_say_how_far_each_tensor_moved(tmp_path):
    trainer = trainer_of(tmp_path, lora=True, max_steps=1, max_grad_norm=1e-4)
    before = weights_of(trainer)
    trace = recorded(trainer)
    names = trace.weights["name"].tolist()
    assert names == [n for n, p in trainer.model.named_parameters() if p.requires_grad]
    after = weights_of(trainer)
    for at, name in enumerate(names):
        moved = (after[name] - before[name]).norm().item()
        assert trace.weights["update_norm"][at] == pytest.approx(moved, rel=1e-4, abs=1e-9)
        assert trace.weights["norm"][at] == pytest.approx(after[name].norm().item(), rel=1e-4)
    total = np.sqrt((trace.weights["grad_norm"] ** 2).sum())
    assert total == pytest.approx(trace.steps["grad_norm"][0], rel=1e-4), "before clipping"
    assert total > 1e-3
    assert "base_model.model.lm_head.weight" not in names
    assert set(trace.weights["in_optimizer"]) == {1}


def test_weights_that_the_optimizer_lacks_are_marked():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([model.weight, torch.nn.Parameter(torch.ones(2))])
    census = Census(model, optimizer)
    census.before_step(readable=True)
    held = {row["name"]: row["in_optimizer"] for row in census.after_step(1).rows()}
    assert held == {"weight": 1, "bias": 0}


def test_large_tensors_are_sampled_and_large_models_looked_at_now_and_then():
    model = torch.nn.Linear(1000, 400, bias=False)
    census = Census(model)
    census.before_step(readable=True)
    with torch.no_grad():
        model.weight[:, ::2] += 0.5
    (row,) = census.after_step(1).rows()
    assert row["size"] == 400_000 and row["sampled"] < 70_000
    assert row["changed_share"] == pytest.approx(0.5, abs=0.01)
    assert row["update_norm"] == pytest.approx(0.5 * np.sqrt(200_000), rel=0.01)
    census.every = 10
    assert [step for step in range(1, 31) if census.is_due(step)] == [1, 10, 20, 30]


def test_the_way_from_the_start_and_what_happens_between_steps_are_recorded():
    model = torch.nn.Linear(100, 100, bias=False)
    census = Census(model)
    found = []
    for step in (1, 2, 3, 5):
        if step == 3:
            with torch.no_grad():
                model.weight += 1.0  # no step did that
        census.before_step(readable=True)
        with torch.no_grad():
            model.weight += 0.5
        found += census.after_step(step).rows()
    assert [row["travel"] for row in found] == pytest.approx([50.0, 100.0, 250.0, 300.0])
    assert [row["between"] for row in found] == [None, 0.0, pytest.approx(100.0), None]


def test_the_attention_mask_is_the_one_the_model_got(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=1)
    attachment = flatline.attach(trainer, MemorySink())
    inner = trainer._get_per_token_logps_and_entropies

    def hides_the_prompt(model, ids, mask, keep, *args, **kwargs):
        mask = torch.cat([torch.zeros_like(mask[:, :-keep]), mask[:, -keep:]], dim=1)
        return inner(model, ids, mask, keep, *args, **kwargs)

    trainer._get_per_token_logps_and_entropies = hides_the_prompt
    trainer.train()
    tokens = attachment.trace.tokens()
    assert not tokens.prompt_attended.any()
    assert tokens.attended.all() and len(tokens.prompt_ids)
    assert trainer._get_per_token_logps_and_entropies is hides_the_prompt


def test_what_was_replaced_after_attach_is_what_is_recorded(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=1)
    attachment = flatline.attach(trainer, MemorySink())
    rewards, loss = trainer._calculate_rewards, trainer._compute_loss
    trainer._calculate_rewards = lambda *a, **k: torch.full_like(rewards(*a, **k), 7.0)

    def trains_half(model, inputs):
        inputs = dict(inputs)
        inputs["completion_mask"] = inputs["completion_mask"].clone()
        inputs["completion_mask"][:, 1:] = 0
        return loss(model, inputs)

    trainer._compute_loss = trains_half
    trainer.train()
    trace = attachment.trace
    assert set(trace.rollouts["reward"]) == {7 * 1.5}
    assert trace.steps["zero_std_share"].tolist() == [1.0]
    assert set(trace.rollouts["trained_tokens"]) == {1}
    assert (trace.rollouts["completion_tokens"] > 1).any(), "a mask does not shorten a completion"


def test_columns_of_the_dataset_tell_prompts_answers_and_hops(tmp_path):
    rows = [
        {"prompt": "Same?", "problem_id": f"p{i}", "solution": 4 + i, "hops": 2} for i in range(4)
    ]
    trace = recorded(trainer_of(tmp_path, rows=rows, max_steps=2))
    assert set(trace.rollouts["prompt_id"]) <= {"p0", "p1", "p2", "p3"}
    assert len(set(trace.rollouts["prompt_id"])) == 2
    golds = {f"p{i}": str(4 + i) for i in range(4)}
    pairs = zip(trace.rollouts["prompt_id"], trace.rollouts["gold"], strict=True)
    assert all(golds[name] == gold for name, gold in pairs)
    assert set(trace.rollouts["hops"]) == {2}


def test_evaluation_is_not_taken_for_training(tmp_path):
    trainer = trainer_of(tmp_path, per_device_eval_batch_size=4)
    trainer.eval_dataset = trainer.train_dataset.select(range(2))
    trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy.STEPS, 1
    trace = recorded(trainer)
    assert len(trace.rollouts) == 8
    assert np.isfinite(trace.steps["heldout_reward"]).all()
    logged = [line["eval_reward"] for line in trainer.state.log_history if "eval_reward" in line]
    assert np.allclose(trace.steps["heldout_reward"], logged)
    assert trace.steps["heldout_rows"].tolist() == [0, 0]


def test_what_an_evaluation_sampled_is_known_again_where_it_is_trained_on(tmp_path):
    trainer = trainer_of(tmp_path, per_device_eval_batch_size=4)
    trainer.eval_dataset = trainer.train_dataset.select(range(1))
    trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy.STEPS, 1
    prepare, left = trainer._prepare_inputs, []

    def mixed_up(rows):
        """An evaluation leaves its completions to the next step."""
        if not trainer.model.training:
            left.append(prepare(rows))
            return left[-1]
        own = prepare(rows)
        return left.pop() if left else own

    trainer._prepare_inputs = mixed_up
    trace = recorded(trainer)
    assert trace.steps["heldout_rows"].tolist() == [0, 4]
    assert find("H46").sign(trace).level is Level.FAULT


def test_of_several_evaluation_sets_none_is_the_held_out_reward(tmp_path):
    trainer = trainer_of(tmp_path, per_device_eval_batch_size=4, max_steps=1)
    one = trainer.train_dataset.select(range(1))
    trainer.eval_dataset = {"easy": one, "hard": one}
    trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy.STEPS, 1
    trace = recorded(trainer)
    assert "heldout_reward" not in trace.steps
    (note,) = trace.run["notes"]
    assert "'easy', 'hard'" in note


def test_flatlines_own_evaluation_and_that_of_one_named_set_are_the_held_out_reward():
    line = {"eval_combined": 0.5, "eval_reward": 0.25}
    assert heldout_reward(line, sets=["easy", "hard"]) == 0.5
    assert heldout_reward({"eval_reward": 0.25}, sets=["easy"]) == 0.25


def test_a_rollout_function_brings_log_probs_and_a_mask(tmp_path):
    def play(prompts, trainer):
        n = len(prompts)
        return {
            "prompt_ids": [[5, 6, 7]] * n,
            "completion_ids": [[8, 9, 10 + i, 11, 12] for i in range(n)],
            "logprobs": [[-1.0, -2.0, 0.0, 0.0, -3.0]] * n,
            "env_mask": [[1, 1, 0, 0, 1]] * n,
        }

    trainer = trainer_of(tmp_path, max_steps=1)
    trainer.rollout_func = play
    trace = recorded(trainer)
    tokens = trace.tokens()
    first = tokens.row == 0
    model, tool = Author.MODEL, Author.TOOL
    assert tokens.author[first].tolist() == [model, model, tool, tool, model]
    assert tokens.trained[first].tolist() == [1, 1, 0, 0, 1]
    assert tokens.sampler[first].tolist() == [-1, -2, 0, 0, -3]
    assert trace.rollouts["turns"].tolist() == [2] * 4
    assert trace.rollouts["model_tokens"].tolist() == [3] * 4
    assert set(trace.rollouts["finish"]) == {"stop"}, "neither an end token nor the limit of 12"
    gap = np.abs(tokens.sampler - tokens.trainer)[tokens.trained == 1]
    assert trace.steps["logprob_gap"][0] == pytest.approx(gap.mean(), rel=1e-4)
    assert trace.steps["logprob_gap_max"][0] == pytest.approx(gap.max(), rel=1e-4)


def test_the_weights_that_sampled_are_named_only_where_they_are_known(tmp_path):
    def play(prompts, trainer):
        ids = [[9, 10 + i] for i in range(len(prompts))]
        return {"prompt_ids": [[5]] * len(ids), "completion_ids": ids, "logprobs": [[-1.0] * 2] * 4}

    own, foreign = (trainer_of(tmp_path / kind, max_steps=3) for kind in ("own", "foreign"))
    foreign.rollout_func = play
    named, unnamed = recorded(own), recorded(foreign)
    assert named.rollouts["weight_version"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert find("H17").sign(named).level is Level.OK
    assert "weight_version" not in unnamed.rollouts
    with pytest.raises(NotRecorded):
        find("H17").sign(unnamed)


def test_rows_of_a_sampler_that_was_not_heard_are_recorded_as_well(tmp_path, monkeypatch):
    """As verifiers' trainers hand them on."""
    generated = Recording.generated
    unheard = lambda self, one, output, _: generated(self, one, output)  # noqa: E731
    monkeypatch.setattr(Recording, "generated", unheard)
    assert len(recorded(trainer_of(tmp_path, max_steps=2)).rollouts) == 8


def test_vllm_has_weights_of_its_own(tmp_path):
    trainer = trainer_of(tmp_path)
    recording = Recording(trainer, MemorySink(), Guard())
    assert recording.begin_generation([{}]).weights == 0
    trainer.use_vllm = True
    assert recording.begin_generation([{}]).weights is None


def test_only_what_reaches_a_limit_is_cut_by_it(tmp_path):
    trace = recorded(trainer_of(tmp_path))
    length, finish = trace.rollouts["completion_tokens"], trace.rollouts["finish"]
    assert set(finish[length == 12]) <= {"length", "eos"} and "length" in finish
    assert set(finish[length < 10]) == {"eos"}
    shares = [(finish[trace.rollouts["step"] == s] == "length").mean() for s in (1, 2)]
    assert trace.steps["truncated_share"].tolist() == shares


def test_a_limit_of_a_turn_that_the_trainer_sets_is_known(tmp_path):
    limit = {"generation_kwargs": {"max_new_tokens": 6}}
    finish = recorded(trainer_of(tmp_path, max_steps=1, **limit)).rollouts["finish"]
    assert "length" in finish and "stop" not in finish


@pytest.mark.parametrize(
    ("level", "clip", "above"),
    [("sequence", 3e-4, None), ("token", 0.2, 0.0)],
)
def test_the_clipped_share_is_that_of_the_trainer(tmp_path, level, clip, above):
    trainer = trainer_of(
        tmp_path,
        num_iterations=2,
        max_steps=4,
        loss_type="grpo",
        epsilon=clip,
        epsilon_high=above,
        importance_sampling_level=level,
        learning_rate=1e-3,
    )
    trace = recorded(trainer)
    share = trace.steps["clip_share"]
    assert share[1] > 0
    assert np.allclose(share, trace.metric("clip_ratio/region_mean"), atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "changes", "precision"),
    [
        (torch.float32, {}, "float32"),
        (torch.bfloat16, {}, "bfloat16"),
        (torch.float16, {}, "float16"),
        (torch.float32, {"bf16": True}, "bfloat16"),
    ],
)
def test_settings_say_what_the_trainer_computes_in(tmp_path, dtype, changes, precision):
    trainer = trainer_of(tmp_path, **changes)
    trainer.model.to(dtype)
    assert settings(trainer)["precision"] == precision


@pytest.mark.parametrize(("allowed", "precision"), [(True, "tf32"), (False, "float32")])
def test_products_that_a_gpu_rounds_to_tf32_are_said(allowed, precision, monkeypatch):
    matmul = SimpleNamespace(allow_tf32=allowed)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    weight = SimpleNamespace(dtype=torch.float32, is_cuda=True)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(mixed_precision="no"),
        args=SimpleNamespace(),
        model=SimpleNamespace(parameters=lambda: iter([weight])),
    )
    assert _precision(trainer) == precision
    matmul.fp32_precision = "tf32" if allowed else "ieee"
    del matmul.allow_tf32
    assert _precision(trainer) == precision


# -- files ------------------------------------------------------------------------------------


def test_a_folder_holds_settings_versions_and_is_compacted_at_the_end(tmp_path):
    trainer = trainer_of(tmp_path, lora=True, warmup_steps=1)
    flatline.attach(trainer, tmp_path / "run")
    trainer.train()
    trace = flatline.Trace.open(tmp_path / "run")
    assert not trace.warnings
    assert not list((tmp_path / "run").glob("*.arrow"))
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert said["source"] == "attach" and said["versions"]["trl"]
    chosen = {"num_generations": 4, "max_steps": 2, "warmup_steps": 1, "prompts_per_step": 1}
    assert chosen.items() <= trace.settings.items()
    assert trace.settings["lora"]["r"] == 2 and trace.settings["engine"] == "transformers"
    assert trace.decode(trace.tokens().ids[:2].astype(int)) == trainer.processing_class.decode(
        trace.tokens().ids[:2].astype(int)
    )


def test_training_twice_makes_a_second_segment_that_replaces_the_first(tmp_path, capsys):
    trainer = trainer_of(tmp_path, max_steps=3)
    flatline.attach(trainer, tmp_path / "run")
    trainer.train()
    assert "earlier training" not in capsys.readouterr().err
    trainer.args.max_steps = 2
    trainer.train()
    said = capsys.readouterr().err
    assert said.count("replaces them in the trace") == 1 and str(tmp_path / "run") in said
    trace = flatline.Trace.open(tmp_path / "run")
    assert trace.steps["step"].tolist() == [1, 2]
    assert len(trace.rollouts) == 8


@pytest.mark.parametrize("experiment", [False, True])
def test_the_end_of_training_says_once_what_to_type_but_not_inside_an_experiment(
    tmp_path, capsys, monkeypatch, experiment
):
    if experiment:
        monkeypatch.setenv("FLATLINE_ANNOUNCE", str(tmp_path / "announced"))
    trainer = trainer_of(tmp_path, max_steps=1)
    flatline.attach(trainer, tmp_path / "my run")
    assert "Next:" not in capsys.readouterr().err
    trainer.train()
    typed = f"Next: `flatline diagnose '{tmp_path / 'my run'}'`"  # the blank is quoted
    assert capsys.readouterr().err.count(typed) == (not experiment)


def test_a_resumed_training_is_not_said_to_replace_what_it_goes_on_from(tmp_path, capsys):
    trainer = trainer_of(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    flatline.attach(trainer, tmp_path / "run")
    trainer.train()
    trainer.args.max_steps = 2
    trainer.train(resume_from_checkpoint=True)
    assert "earlier training" not in capsys.readouterr().err
    assert flatline.Trace.open(tmp_path / "run").steps["step"].tolist() == [1, 2]


def test_a_trainer_that_is_recorded_into_two_folders_is_said_to_be(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("transformers.trainer_callback.logger.warning", pytest.fail)
    trainer = trainer_of(tmp_path, max_steps=1)
    first = flatline.attach(trainer, tmp_path / "a")
    second = flatline.attach(trainer, tmp_path / "b")
    said = capsys.readouterr().err
    assert said.count("`detach()` the other") == 1
    assert all(str(tmp_path / name) in said for name in "ab")
    with pytest.raises(TraceError, match="This process already records"):
        flatline.attach(trainer, tmp_path / "a")
    trainer.train()
    for one in (second, first):
        assert one.trace.steps["step"].tolist() == [1]
        one.detach()


def test_a_killed_run_keeps_every_finished_step(tmp_path):
    code = f"""
from pathlib import Path
from tests.test_attach import Kill, trainer_of
import flatline
trainer = trainer_of(Path({str(tmp_path)!r}), max_steps=9)
flatline.attach(trainer, {str(tmp_path / "run")!r})
trainer.add_callback(Kill())
trainer.train()
"""
    ended, words = warm.run(code, folder=tmp_path)
    assert ended == -signal.SIGKILL, words
    trace = flatline.Trace.open(tmp_path / "run")
    assert {1, 2} <= set(trace.steps["step"]) and len(trace.tokens(steps=[2]).ids)


class Kill(TrainerCallback):
    """Ends the process at the beginning of the fourth step."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


TWO = """
import os
from pathlib import Path
import torch; torch.set_num_threads(1)
from tests.test_attach import trainer_of, weights_of
import flatline
folder = Path(os.environ["FOLDER"])
rank = int(os.environ["RANK"])
made = {}
for kind in ("plain", "watched"):
    trainer = trainer_of(folder / kind / str(rank), per_device_train_batch_size=2)
    if kind == "watched":
        flatline.attach(trainer, folder / "run")
    torch.manual_seed(rank)
    trainer.train()
    made[kind] = weights_of(trainer)
assert all(torch.equal(made["plain"][n], p) for n, p in made["watched"].items())
"""


def test_two_processes_record_their_own_rollouts_and_one_the_steps(tmp_path):
    code, words = warm.run_two(TWO, folder=tmp_path, FOLDER=str(tmp_path))
    assert code == 0, words[-3000:]
    trace = flatline.Trace.open(tmp_path / "run")
    assert trace.steps["step"].tolist() == [1, 2]
    assert len(trace.rollouts) == 8
    order = np.lexsort((trace.rollouts["rollout"], trace.rollouts["step"]))
    assert trace.rollouts["rank"][order].tolist() == [0, 0, 1, 1] * 2
    assert trace.rollouts["rollout"][order].tolist() == [0, 1, 2, 3] * 2
    assert (trace.groups().size == 4).all()
    by_step = [trace.rollouts["reward"][trace.rollouts["step"] == s].mean() for s in (1, 2)]
    assert np.allclose(trace.steps["reward"], by_step), "rewards of all processes"


@pytest.mark.parametrize(
    ("ids", "one_turn", "finish"),
    [
        ([5, 6, 2], True, "eos"),
        ([5, 2, 6, 7], True, "eos"),  # the trainer went on behind an end that the model declares
        ([5, 2, 6, 7], False, "length"),  # the end of an earlier turn
        ([5, 6, 7, 8], True, "length"),
        ([5, 6, 7, 0], True, "stop"),  # padding that the model wrote is an end to TRL
    ],
)
def test_a_completion_ends_with_any_id_that_the_model_declares_as_an_end(ids, one_turn, finish):
    reader = Reader(
        eos=frozenset({2, 3}),
        one_turn=one_turn,
        longest=4,
        longest_turn=None,
        pad=0,
        rank=0,
        group_size=2,
        gold_names=(),
        reward_names=(),
        reward_weights=np.ones(0),
    )
    assert _finish(np.array(ids), None, reader) == finish
