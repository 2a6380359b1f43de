"""The Subject measures what it says, and leaves no mark."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from flatline.config import RunConfig
from flatline.errors import ConfigError, NotRecorded
from flatline.live.measure.part_of_batch import half, together
from flatline.live.measure.played import Played
from flatline.live.measure.short_plays import longest_turn
from flatline.live.measure.step import HIGHEST_RATE, fitting, kl_of
from flatline.live.trl.subject import TrlSubject
from flatline.live.trl.trainer import TrlTrainer
from flatline.tasks import make_task
from flatline.training import oracle as ours
from flatline.training.environment import (
    environment_factory,
    environment_reward,
    environment_rows,
    tokenizer_for_trl,
)
from flatline.training.models import load_policy
from flatline.training.subject import OurSubject
from flatline.training.trainer import build
from tests.tiny import tiny_model, tokenizer_with

torch.set_num_threads(1)

TINY = RunConfig(
    datasets="lab,,train[:24]",
    eval_limit=0,
    batch_size=16,
    num_generations=4,
    max_steps=2,
    max_new_tokens=64,
    lora_targets="q_proj,v_proj",
)


def built_in(folder, **changes):
    return build(replace(TINY, output_dir=str(folder), **changes))


def subject_in(folder, **changes):
    built = built_in(folder, **changes)
    return OurSubject(built)


def users_trainer(folder, **changes):
    """A GRPOTrainer as anybody writes one: single turn, TRL's own sampling, a reward function."""
    tokenizer = tokenizer_with()
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": 3,
    }
    prompts = [f"say {word} now" for word in ("one", "two", "three", "four", "five", "six")]
    return GRPOTrainer(
        model=tiny_model(vocab=len(tokenizer)),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(sum(map(ord, c)) % 7) for c in completions],
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        args=GRPOConfig(**{**settings, **changes}),
    )


def tool_trainer(folder):
    """TRL's own tool loop with the lab policy, adapters and a reference."""
    policy, task = load_policy("lab"), make_task("musique")
    problems = task.load("lab,,train[:4]", split="train")
    return GRPOTrainer(
        model=policy.model,
        processing_class=tokenizer_for_trl(policy.tokenizer),
        reward_funcs=environment_reward,
        environment_factory=environment_factory(task, problems),
        train_dataset=Dataset.from_list(environment_rows(task, problems)),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=160,
            max_steps=2,
            beta=0.04,
            report_to=[],
            disable_tqdm=True,
        ),
    )


def look_at_everything(subject):
    """Every measurement that the trainer can give."""
    subject.data_order(), subject.batch, subject.trace, subject.settings
    subject.context_effect("prompt"), subject.context_effect("tool")
    subject.scored_twice(), subject.reference_gap(), subject.alone_vs_batch()
    subject.gradient_twice()
    subject.fitting_step(), subject.delivery(), subject.play_again()
    if subject.ours:
        subject.oracle(), subject.heldout_path(2)


def state_of(trainer):
    """All that decides what the next steps do."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    held = [] if optimizer is None else [v for s in optimizer.state.values() for v in s.values()]
    return {
        "weights": [p.detach().clone() for p in trainer.model.parameters()],
        "gradients": [p.grad is None for p in trainer.model.parameters()],
        "optimizer": [v.clone() if isinstance(v, torch.Tensor) else v for v in held],
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()),
        "modes": [m.training for m in trainer.model.modules()],
        "metrics": {mode: dict(found) for mode, found in trainer._metrics.items()},
        "logs": list(trainer._logs["advantages"]),
        "state": str(trainer.state),
        "step": trainer._step,
        "names": sorted(vars(trainer)),
    }


def assert_same(a, b):
    for name, value in a.items():
        pairs = zip(value, b[name], strict=True) if isinstance(value, list | tuple) else ()
        for one, other in pairs:
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, other), name
            else:
                assert one == other, name
        if not isinstance(value, list | tuple):
            assert value == b[name], name


def trained(trainer):
    trainer.train()
    log = [line for line in trainer.state.log_history if "loss" in line]
    kept = ("loss", "grad_norm", "reward", "entropy")
    state = (trainer.state.global_step, trainer.state.num_input_tokens_seen)
    numbers = [[line.get(name) for name in kept] for line in log]
    return {**state_of(trainer), "metrics": numbers, "state": state}  # the rest is seconds


# -- no mark ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    """What the smallest setup trains while nobody looks."""
    return trained(built_in(tmp_path_factory.mktemp("unseen"), batch_size=8).trainer)


@pytest.mark.parametrize(
    "changes",
    [
        {"peft": False, "kl_beta": 0.04, "sampler_weights": "copy"},
        {"lora_dropout": 0.3, "num_iterations": 2, "gradient_accumulation_steps": 2},
    ],
    ids=["full", "dropout"],
)
def test_the_next_steps_are_the_same_bit_for_bit_after_every_measurement(
    tmp_path, monkeypatch, changes
):
    made, snapshot = [], TrlTrainer.snapshot
    monkeypatch.setattr(TrlTrainer, "snapshot", lambda live: made.append(1) or snapshot(live))
    changes = {"batch_size": 8, **changes}
    plain = trained(built_in(tmp_path, **changes).trainer)
    subject = subject_in(tmp_path, **changes)
    before = state_of(subject.trainer)
    with subject.standing_still():
        look_at_everything(subject)
        assert_same(before, state_of(subject.trainer))
    assert len(made) == 1, "one serves every measurement while nobody trains"
    assert subject._built.rollouts.weights is None and subject._built.rollouts.engine is None
    assert_same(plain, trained(subject.trainer))


def test_a_measurement_inside_another_goes_back_to_where_it_began(tmp_path):
    subject = subject_in(tmp_path, batch_size=8)
    weight = next(p for p in subject.trainer.model.parameters() if p.requires_grad)
    first = weight.detach().clone()
    with subject.standing_still(), subject.untouched():
        weight.data += 1
        subject.data_order()
        assert torch.equal(weight, first + 1)
    assert torch.equal(weight, first)


def test_a_users_trainer_goes_on_as_if_nobody_had_looked(tmp_path):
    plain = trained(users_trainer(tmp_path))
    trainer = users_trainer(tmp_path)
    before = state_of(trainer)
    look_at_everything(TrlSubject(trainer))
    assert_same(before, state_of(trainer))
    assert_same(plain, trained(trainer))


def test_a_look_in_the_middle_of_training_leaves_no_mark_either(tmp_path, unseen):
    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 1:
                look_at_everything(subject)

    subject = subject_in(tmp_path, batch_size=8)
    subject.trainer.add_callback(Look())
    assert_same(unseen, trained(subject.trainer))


def test_what_breaks_inside_is_put_back_too(tmp_path):
    subject = subject_in(tmp_path)
    before = state_of(subject.trainer)
    with pytest.raises(ZeroDivisionError), subject.untouched():
        torch.rand(3)
        for weight in subject.trainer.model.parameters():
            weight.data += 1
        subject.trainer._metrics["train"]["x"].append(1.0)
        1 / 0  # noqa: B018
    assert_same(before, state_of(subject.trainer))


def test_a_recording_in_progress_does_not_hear_the_measurements(tmp_path):
    from flatline.live.trl.recorder.attach import attach
    from flatline.trace.writer import MemorySink

    subject, sink = subject_in(tmp_path, batch_size=8), MemorySink()
    attachment = attach(subject.trainer, sink)
    subject.one_step(), subject.play_again()
    subject.trainer.train()
    attachment.detach()
    assert sink.trace().rollouts["step"].tolist() == [1.0] * 8 + [2.0] * 8


# -- healthy ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return subject_in(tmp_path_factory.mktemp("healthy"), lora_targets="all-linear")


def test_the_batch_is_the_one_that_training_starts_with(healthy, tmp_path):
    seen = []
    trainer = built_in(tmp_path, max_steps=1).trainer
    original = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda rows: seen.append(original(rows)) or seen[0]
    trainer.train()
    ids = seen[0]["completion_ids"][seen[0]["completion_mask"].bool()]
    assert ids.tolist() == healthy.batch.ids_T.tolist()
    assert np.allclose(seen[0]["advantages"], healthy.batch.advantage_R)


@pytest.mark.parametrize("which", ["prompt", "tool"])
def test_the_context_matters(healthy, which):
    found = healthy.context_effect(which)
    assert found.mean > 0.1 and found.rollouts.tolist() == healthy._few_rows
    assert (found.replaced > 0).all()


def test_two_passes_and_one_alone_agree(healthy):
    twice = healthy.scored_twice()
    assert max(twice.trained, twice.scoring, twice.moved_trained, twice.moved_scoring) == 0
    assert healthy.alone_vs_batch().difference.max() < 1e-4
    assert healthy.gradient_twice() == pytest.approx(1, abs=1e-5)


def test_the_reference_is_the_start_and_does_not_move_along(healthy):
    found = healthy.reference_gap()
    assert found.untrained and np.abs(found.gap_T).max() == 0
    assert found.moved_gap > 0.1


def test_a_step_raises_what_was_good(healthy):
    step = healthy.one_step()
    assert step.change_up > step.change_down
    assert step.kl > 0
    half_b = np.array(step.gradients.kinds) == "lora_B"
    assert (step.gradients.norms[half_b] > 0).all() and step.gradients.in_optimizer.all()
    assert (step.gradients.norms[~half_b] == 0).all() and step.gradients.lora_untrained
    assert (step.changed_share_of[half_b] > 0.99).all()
    assert step.rollouts.tolist() == list(range(16))


def test_the_kl_of_one_token_is_not_that_of_the_step():
    one_BT, all_BT = torch.zeros(2, 16, 30, dtype=torch.float64)
    one_BT[3, 5] = 7.3  # 1500 times as likely as before
    all_BT -= 3.0
    own_BT = torch.ones(16, 30, dtype=torch.bool)
    (one, least_of_one), (every, least_of_all) = (kl_of(d, own_BT) for d in (one_BT, all_BT))
    assert one > every > least_of_all > 1 > least_of_one


def test_tokens_that_are_not_the_models_have_no_part_in_the_kl():
    change_BT = torch.tensor([[0.1, 9.0], [0.1, float("nan")], [7.0, 7.0]], dtype=torch.float64)
    own_BT = torch.tensor([[True, False], [True, False], [False, False]])
    assert kl_of(change_BT, own_BT)[0] == pytest.approx(0.00517, rel=1e-2)
    assert math.isnan(kl_of(change_BT, own_BT & False)[0])


def steps_with(kl_of):
    """Steps of a trainer at the rate 1e-5, whose KL is a function of the rate; what was tried."""
    tried = []

    def measure(scale):
        tried.append(1e-5 * scale)
        return SimpleNamespace(learning_rate=1e-5 * scale, kl=kl_of(1e-5 * scale))

    return measure, tried


@pytest.mark.parametrize("kl_of", [lambda rate: 1e3 * rate**2, lambda rate: 0.3 * rate**0.5 - 1e-3])
def test_a_rate_is_named_only_after_its_step_was_seen_to_fit(kl_of):
    measure, tried = steps_with(kl_of)
    found = fitting(measure)
    assert 1e-4 <= found.kl <= 1e-2
    assert found.learning_rate == tried[-1] == pytest.approx(float(f"{tried[-1]:.2g}"))


def test_an_adapter_that_hardly_moves_is_not_sent_to_an_absurd_rate():
    measure, tried = steps_with(lambda rate: 8e-3 * rate**2)  # a KL of 1e-3 at 0.35
    assert fitting(measure) is None
    assert max(tried) == pytest.approx(HIGHEST_RATE)


def test_steps_that_leave_no_numbers_are_followed_by_smaller_ones():
    measure, _ = steps_with(lambda rate: np.nan if rate > 1e-6 else 1e9 * rate**2)
    assert fitting(measure).learning_rate < 1e-5


def test_the_sampler_follows_the_weights_there_and_back(healthy):
    found = healthy.delivery()
    assert found.visible > 0.1
    assert max(found.gap_before, found.gap_moved, found.gap_restored) < 1e-3


def test_rollouts_of_the_next_step_name_its_weights(healthy):
    found = healthy.play_again()
    assert found.version_expected == 1
    assert found.versions.tolist() == [1] * 8


def test_shorter_rollouts_are_scored_more_at_a_time_in_the_same_memory():
    def played(prompt, completion):
        ids = {"prompt_ids": torch.ones(4, prompt), "completion_ids": torch.ones(4, completion)}
        return Played([{}] * 4, ids)

    whole = played(100, 900)
    assert together(2, whole, whole) == 2
    assert together(2, whole, played(100, 400)) == 4
    assert together(2, whole, played(10, 890)) == 2
    assert together(2, whole, played(100, 0)) == 20


def test_half_of_the_rollouts_are_those_that_have_a_gradient():
    def played(*advantages, left_out=()):
        mask = torch.tensor([[int(row not in left_out)] for row in range(len(advantages))])
        inputs = {"advantages": torch.tensor(advantages), "completion_mask": mask}
        return Played([{}] * len(advantages), inputs)

    assert half(played(0.0, 0.1, -2.0, 1.0, 0.0, 0.0, 0.5, -1.0)) == [2, 3, 6, 7]
    assert half(played(0.0, 0.1, -2.0, 1.0, 0.0, 0.0)) == [2, 3]
    assert half(played(1.0, 0.0)) == [0, 1]
    assert half(played(0.0, 0.1, -2.0, 1.0, left_out=[2])) == [1, 3]


def test_training_and_evaluation_go_the_same_way(healthy):
    found = healthy.heldout_path(2)
    assert found.prompts_equal and found.same_completion == 1 and not found.limits
    assert np.allclose(found.training_reward, found.heldout_reward)
    assert np.allclose(found.rescored, found.heldout_reward)


def test_the_path_of_evaluation_is_told_from_short_turns(tmp_path, monkeypatch):
    subject = subject_in(tmp_path)
    rollouts = [row["rollout"] for row in subject._played.rows]
    monkeypatch.setattr(ours, "TURN", max(map(longest_turn, rollouts)) - 1)
    found = subject.heldout_path(4)
    assert found.problems == 4 and found.same_completion == 1 and not found.limits
    assert 4 <= len(found.heldout_reward) < len(rollouts)
    assert np.allclose(found.training_reward, found.heldout_reward)


def test_gold_earns_the_maximum_and_nothing_else_does(healthy):
    found = healthy.oracle(4)
    assert not found.below_maximum and not found.not_below_gold and found.played > 4


def test_an_epoch_visits_every_problem_once(healthy):
    found = healthy.data_order()
    assert found.visited_share == 1 and found.groups_whole and found.epoch_complete
    assert (found.unique_per_step == 4).all() and len(set(found.prompt_N)) == 24
    assert set(found.hops_N) <= {2, 3, 4}


def test_the_trace_of_the_batch_has_what_signs_need(healthy):
    trace = healthy.trace
    assert len(trace.rollouts) == 16 and len(trace.steps) == 1
    tokens = trace.tokens()
    assert np.allclose(
        tokens.sampler[tokens.trained > 0], tokens.trainer[tokens.trained > 0], atol=1e-4
    )
    assert healthy.settings["num_generations"] == 4


def test_a_few_rollouts_stand_for_the_batch(healthy):
    rows, few = healthy._few_rows, healthy._few
    assert len(rows) == 8 and all(row // 4 * 4 in rows for row in rows), "whole groups"
    assert np.abs(healthy.batch.advantage_R[rows]).max() > 0
    assert few.mask_BT.any(0).all() and few.inputs["prompt_mask"].bool().any(0).all()
    assert few.completions == [healthy._played.completions[row] for row in rows]
    difference_BT = healthy._few_logps_BT - healthy._logps_BT[rows, : few.mask_BT.shape[1]]
    assert difference_BT[few.mask_BT].abs().max() < 1e-4


# -- sick -------------------------------------------------------------------------------------


def test_a_hidden_context_has_no_effect(tmp_path):
    subject = subject_in(tmp_path)
    scorer = subject.trainer._get_per_token_logps_and_entropies

    def blind(model, ids, mask, keep, **kwargs):
        mask = mask.clone()
        mask[:, :-keep] = 0
        return scorer(model, ids, mask, keep, **kwargs)

    subject.trainer._get_per_token_logps_and_entropies = blind
    assert subject.context_effect("prompt").max == 0
    assert subject.context_effect("tool").mean > 0.1
    gap_T = subject.batch.trainer_T - subject.batch.sampler_T
    assert np.abs(gap_T[subject.batch.trained_T]).mean() > 0.1


def test_a_sampler_that_is_never_updated_stays_behind(tmp_path):
    subject = subject_in(tmp_path, sampler_weights="copy")
    rollouts = subject._built.rollouts
    deliver = rollouts._deliver

    def once(model, trainer):
        if rollouts.weights is None:
            deliver(model, trainer)

    rollouts._deliver = once
    found = subject.delivery()
    assert found.gap_before < 1e-3 and found.gap_moved > 0.1 and found.gap_restored < 1e-3
    assert set(subject.play_again().versions) == {0}


def test_attention_dropout_says_nothing_about_how_passes_are_added_up(tmp_path):
    subject = subject_in(tmp_path)
    for module in subject.trainer.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    assert subject.gradient_twice() < 0.9
    assert subject.accumulation().cosine == pytest.approx(1, abs=1e-4)
    assert max(getattr(m, "attention_dropout", 0) for m in subject.trainer.model.modules()) == 0.3


def test_dropout_shows_once_the_weights_have_moved(tmp_path):
    found = subject_in(tmp_path, lora_dropout=0.3).scored_twice()
    assert found.trained == 0 and found.moved_trained > 1e-3
    assert found.scoring == found.moved_scoring == 0 and found.dropout == 0.3


def test_advantages_that_are_turned_round_push_the_wrong_way(tmp_path):
    subject = subject_in(tmp_path)
    loss = subject.trainer._compute_loss
    turned = lambda model, inputs: loss(model, {**inputs, "advantages": -inputs["advantages"]})  # noqa: E731
    subject.trainer._compute_loss = turned
    step = subject.one_step()
    assert step.change_up < step.change_down


def test_sizes_that_were_changed_behind_trl_leave_prompts_out(tmp_path):
    trainer = users_trainer(tmp_path)
    trainer.args.steps_per_generation = 2
    trainer.args.gradient_accumulation_steps = 2
    found = TrlSubject(trainer).data_order()
    assert (found.unique_per_step < found.groups_per_step).any()


# -- a user's trainer -------------------------------------------------------------------------


def test_a_users_trainer_is_measured_as_far_as_it_can_be(tmp_path):
    subject = TrlSubject(users_trainer(tmp_path))
    assert subject.requested is None and subject.effective is None
    assert np.abs(subject.batch.sampler_T - subject.batch.trainer_T).max() < 1e-4
    with pytest.raises(NotRecorded):
        subject.oracle()
    assert subject.reference_gap() is None
    assert len(subject.context_effect("tool").rollouts) == 0
    assert subject.context_effect("prompt").max > 0
    found = subject.delivery()
    assert max(found.gap_before, found.gap_moved, found.gap_restored) < 1e-4 < found.visible
    assert found.same_by_chance is None
    assert subject.one_step().correlation > 0.3


def test_trls_own_tool_loop_is_measured_and_left_alone(tmp_path):
    plain = trained(tool_trainer(tmp_path))
    trainer = tool_trainer(tmp_path)
    subject = TrlSubject(trainer)
    look_at_everything(subject)
    assert subject.context_effect("tool").mean > 0.1
    found = subject.reference_gap()
    assert found.source == "trainer" and np.abs(found.gap_T).max() < 1e-5
    assert found.moved_gap > 0.1
    assert_same(plain, trained(trainer))


def test_a_reference_that_keeps_the_adapter_moves_along(tmp_path):
    subject = subject_in(tmp_path, kl_beta=0.04, fault="reference-keeps-adapter")
    assert subject.reference_gap().moved_gap < 1e-5


def test_a_trainer_in_the_middle_of_accumulation_is_refused(tmp_path):
    trainer = users_trainer(tmp_path, max_steps=1, gradient_accumulation_steps=2)
    said, after = [], []

    class Look(TrainerCallback):
        def on_substep_end(self, *args, **kwargs):
            with pytest.raises(ConfigError, match="in the middle of an optimizer step") as caught:
                TrlSubject(trainer)
            said.append(str(caught.value))

        def on_step_end(self, *args, **kwargs):
            after.append(TrlSubject(trainer))

    trainer.add_callback(Look())
    trainer.train()
    assert len(said) == 1 and "on_step_end" in said[0] and len(after) == 1


def test_what_is_no_trainer_is_refused():
    with pytest.raises(ConfigError, match="not a GRPOTrainer"):
        TrlSubject(object())
