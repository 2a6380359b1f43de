"""What scripts that strangers could have written showed, on stock TRL."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOTrainer

import flatline
from flatline.errors import ConfigError
from flatline.hypotheses.base import ALARMS, Level
from flatline.live.batch import GOLD_NAMES
from flatline.live.measure.passes import no_dropout
from flatline.live.trl.gold import gold_names
from flatline.live.trl.recorder.rows import _counted
from flatline.live.trl.settings import settings
from tests.test_trl_breadth import asked, trainer_in

torch.set_num_threads(1)


def test_an_optimizer_whose_epsilon_is_a_pair_is_measured_like_any_other(tmp_path):
    report = flatline.checkup(trainer_in(tmp_path, optim="adafactor", learning_rate=1e-3))
    assert not [one.text for one in report.findings if "defect of flatline" in one.text]


@pytest.mark.parametrize(
    ("given", "temperatures"),
    [
        ({"temperature": 0.4}, (0.4, 1.0)),
        ({"do_sample": False}, (0.0, 1.0)),
        (None, (1.0, None)),
        ({"temperature": 1.0}, (1.0, None)),
        ({"top_k": 5}, (1.0, None)),
    ],
)
def test_a_temperature_of_the_sampler_alone_is_told_from_that_of_the_loss(
    tmp_path, given, temperatures
):
    trainer = trainer_in(tmp_path, generation_kwargs=given)
    found = settings(trainer)
    assert (found["temperature"], found["loss_temperature"]) == temperatures
    if temperatures[1]:
        assert asked(trainer, "H21").level in ALARMS


def counted(*answers):
    """What is recorded of a completion whose calls got these answers."""
    said = [
        {"role": "assistant", "tool_calls": [{"type": "function"}] * len(answers)},
        *({"role": "tool", "name": "add", "content": answer} for answer in answers),
        {"role": "assistant", "content": "{'error': 'none of mine'}"},
    ]
    generation = SimpleNamespace(events=[], completions=[said])
    return _counted(SimpleNamespace(generation=generation, row=0, authors=np.zeros(0)))


def test_calls_that_raise_in_trls_own_tool_loop_are_counted_as_errors():
    assert counted("3", "{'error': 'no such file'}") == {"tool_calls": 1, "tool_errors": 1}
    assert counted("an error was found") == {"tool_calls": 1, "tool_errors": 0}


class Frees(TrainerCallback):
    """Empties the optimizer's state to save memory."""

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        getattr(optimizer, "optimizer", optimizer).state.clear()


def test_an_optimizer_that_forgets_after_every_step_departs(tmp_path):
    for callbacks, level in (([Frees()], Level.FAULT), (None, Level.OK)):
        trainer = trainer_in(tmp_path, callbacks=callbacks, learning_rate=1e-3)
        assert asked(trainer, "H58").level is level


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)


def letters_said(completions, **_):
    return [float(len(set(one[0]["content"]))) for one in completions]


def chatting(tmp_path, template, content, **changes):
    """A checkup of a trainer whose tokenizer has this template."""
    rows = [{"prompt": [{"role": "user", "content": f"{content}{i}"}]} for i in range(8)]
    trainer = trainer_in(tmp_path, rows=Dataset.from_list(rows), **changes)
    trainer.reward_funcs[0] = letters_said
    trainer.processing_class.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    )
    trainer.model.resize_token_embeddings(len(trainer.processing_class))
    trainer.processing_class.chat_template = template
    return trainer


@pytest.mark.parametrize(
    ("template", "content", "told"),
    [
        (CHATML, "What is ", "add_generation_prompt"),
        (CHATML + OPENING, "<|im_start|>user\nWhat is ", "twice"),
        (CHATML + OPENING, "What is ", None),
        (MISTRAL, "What is ", None),
    ],
)
def test_a_turn_that_no_template_opens_or_that_two_do_is_a_fault(tmp_path, template, content, told):
    finding = asked(chatting(tmp_path, template, content), "H16")
    assert (finding.level is Level.FAULT) is (told is not None)
    assert finding.level not in ALARMS if told is None else told in finding.text


def one_prompt(tmp_path, **columns):
    rows = [
        {"prompt": "Add these .", "answer": str(at), **dict.fromkeys(columns, at)}
        for at in range(8)
    ]
    return trainer_in(tmp_path, rows=Dataset.from_list(rows), per_device_train_batch_size=16)


def test_prompts_are_counted_as_texts_although_rows_have_ids_but_not_beside_images(tmp_path):
    assert settings(one_prompt(tmp_path, id=True))["prompt_texts"] == 1
    assert settings(one_prompt(tmp_path, image=True))["prompt_texts"] is None


def test_data_that_is_exchanged_is_counted_anew(tmp_path):
    trainer = one_prompt(tmp_path)
    assert [settings(trainer)["prompt_texts"] for _ in range(2)] == [1, 1]
    trainer.train_dataset = trainer.train_dataset.map(
        lambda row, at: {"prompt": row["prompt"] + str(at % 3)}, with_indices=True
    )
    assert settings(trainer)["prompt_texts"] == 3


def test_the_rate_of_ones_own_optimizer_is_the_one_asked_for(tmp_path):
    def own(trainer):
        return torch.optim.Adamax(trainer.model.parameters(), lr=5e-3)

    trainer = trainer_in(tmp_path, learning_rate=1e-6)
    assert settings(trainer)["learning_rate"] == 1e-6
    trainer.optimizer = own(trainer)
    assert settings(trainer)["learning_rate"] == 5e-3
    flatline.attach(trainer, tmp_path / "run")
    trainer.train()
    assert settings(trainer)["learning_rate"] == 5e-3, "with the schedule at work, too"
    levels = {one.hypothesis: one.level for one in flatline.diagnose(tmp_path / "run").findings}
    assert levels["H58"] not in ALARMS


def test_attention_whose_dropout_is_a_layer_is_looked_at_like_any_other():
    inner = torch.nn.Module()
    inner.attention_dropout = torch.nn.Dropout(0.2)
    number = torch.nn.Module()
    number.attention_dropout = 0.2
    no_dropout(SimpleNamespace(model=torch.nn.ModuleList([inner, number])))
    assert inner.attention_dropout.p == 0 and number.attention_dropout == 0


def data(**columns):
    rows = {"prompt": ["q"] * 8, **{name: [*values] for name, values in columns.items()}}
    return Dataset.from_dict(rows)


@pytest.mark.parametrize(
    ("asks", "columns", "named"),
    [
        (["number"], {"number": range(8)}, ("number",)),
        (["number"], {"number": range(8), "answer": range(8)}, GOLD_NAMES),
        (["number", "level"], {"number": range(8), "level": range(8)}, GOLD_NAMES),
        (["flag"], {"flag": [0, 1] * 4}, GOLD_NAMES),
        (["banned"], {"banned": "abcdefgh"}, GOLD_NAMES),
        ([], {"number": range(8)}, GOLD_NAMES),
    ],
)
def test_gold_is_the_one_number_that_a_reward_asks_for(asks, columns, named):
    parameters = ", ".join(["completions", *asks, "**kwargs"])
    function = eval(f"lambda {parameters}: [0.0 for _ in completions]")
    trainer = SimpleNamespace(train_dataset=data(**columns), reward_funcs=[function])
    assert gold_names(trainer) == named


class MixesGroups(GRPOTrainer):
    """Folds rewards as (group, prompt); with a single group that is right."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self.paid = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self.paid

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        folded = self.paid.sum(1).view(self.num_generations, -1)
        spread = folded.std(0, keepdim=True) + 1e-4
        return batch | {"advantages": ((folded - folded.mean(0)) / spread).flatten()}


def test_advantages_that_mix_groups_are_seen_though_a_step_is_tried_on_a_single_one(
    tmp_path,
):
    two_groups = {"per_device_train_batch_size": 16, "num_generations": 8}
    assert asked(trainer_in(tmp_path, kind=MixesGroups, **two_groups), "H53").level in ALARMS


class ReplacesEqualGroups(GRPOTrainer):
    """Puts copies of the first group in the place of the second one."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        rows = torch.arange(self.num_generations).repeat(2)
        return {
            name: value[rows] if isinstance(value, torch.Tensor) and value.ndim else value
            for name, value in batch.items()
        }


TWO_GROUPS = {"per_device_train_batch_size": 16, "num_generations": 8}


class Sorts(GRPOTrainer):
    """Puts rows in another order, by a list of what belongs to them that may lack something."""

    parts = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        order = torch.arange(len(batch["advantages"])).flip(0)
        return batch | {name: batch[name][order] for name in self.parts}


class SortsAll(Sorts):
    parts = (*Sorts.parts, "advantages")


class SortsAllLate(GRPOTrainer):
    """The same, between the buffer and the loss."""

    def _prepare_inputs(self, inputs):
        batch = super()._prepare_inputs(inputs)
        return batch | {name: batch[name].flip(0) for name in SortsAll.parts}


FROM_OTHER_ROWS = {"H05", "H10", "H11", "H19", "H20", "H33", "H50", "H53", "H54", "H57", "H68"}


def recorded(trainer, run):
    flatline.attach(trainer, run)
    trainer.train()
    return flatline.diagnose(run)


def test_a_checkup_names_the_line_that_sorts_rows_without_their_advantages(tmp_path):
    first = flatline.checkup(trainer_in(tmp_path, kind=Sorts, **TWO_GROUPS)).causes[0]
    assert first.hypothesis == "H33"
    assert any("test_strangers.py" in str(one.file) for one in first.where)


@pytest.mark.parametrize("kind", [SortsAll, SortsAllLate])
def test_rows_that_are_sorted_with_their_advantages_are_found_again(tmp_path, kind):
    many = {**TWO_GROUPS, "max_steps": 2, "gradient_accumulation_steps": 2}
    report = recorded(trainer_in(tmp_path / "out", kind=kind, **many), tmp_path / "run")
    assert not {one.hypothesis for one in report.alarms} & FROM_OTHER_ROWS


class TrainsEverySecond(GRPOTrainer):
    """Samples more than it trains, as GFPO does, whose method is written anew inside of TRL."""

    __module__ = "trl.experimental.of_a_test"
    left = ()
    changed = 0

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        batch["completion_ids"] = batch["completion_ids"] + self.changed
        kept = range(1, len(inputs), 2)
        return {
            name: value[kept] if isinstance(value, torch.Tensor) and value.ndim else value
            for name, value in batch.items()
            if name not in self.left
        } | {name: batch[name] for name in self.left}


class KeepsLogprobsOfOthers(TrainsEverySecond):
    left = ("old_per_token_logps",)


class ChangesIds(TrainsEverySecond):
    changed = 1


SEVERAL = {**TWO_GROUPS, "max_steps": 4, "num_iterations": 2}


def test_a_trainer_that_trains_some_of_what_it_samples_is_recorded_by_the_rows_it_trains(tmp_path):
    report = recorded(
        trainer_in(tmp_path / "out", kind=TrainsEverySecond, **SEVERAL), tmp_path / "run"
    )
    assert not {one.hypothesis for one in report.alarms} & (FROM_OTHER_ROWS | {"H48", "H65"})
    trace = flatline.Trace.open(tmp_path / "run")
    first = trace.rollouts["rollout"][trace.rollouts["step"] == 1]
    assert first.tolist() == list(range(1, 16, 2))
    assert set(trace.groups().size.tolist()) == {4}
    tokens = trace.tokens()
    assert np.abs(tokens.sampler - tokens.trainer)[tokens.trained].max() < 1e-3
    assert "8 of 16 sampled rows" in " ".join(report.caveats)


def test_old_logprobs_that_are_left_to_rows_that_are_not_trained_are_named(tmp_path):
    trainer = trainer_in(tmp_path / "out", kind=KeepsLogprobsOfOthers, **SEVERAL)
    assert recorded(trainer, tmp_path / "run").causes[0].hypothesis == "H54"


def test_rows_whose_ids_tell_nothing_end_the_recording_and_not_the_training(tmp_path, capsys):
    trainer = trainer_in(tmp_path / "out", kind=ChangesIds, **TWO_GROUPS)
    attachment = flatline.attach(trainer, tmp_path / "run")
    trainer.train()
    assert attachment.failed and trainer.state.global_step == trainer.args.max_steps
    assert "their ids" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ReplacesEqualGroups, "16, 8 are left out or replaced"),
        (SortsAll, "in another order"),
        (TrainsEverySecond, "of 16, 8 are left out"),
    ],
)
def test_a_checkup_of_a_trainer_that_trains_other_rows_than_it_samples_is_refused_in_words(
    tmp_path, kind, told
):
    with pytest.raises(ConfigError, match=told) as raised:
        flatline.checkup(trainer_in(tmp_path, kind=kind, **TWO_GROUPS))
    assert "flatline.attach(trainer" in str(raised.value)


class MergesToSample(GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        self.model.merge_adapter()
        return super()._generate_single_turn(*args, **kwargs)


def test_an_adapter_that_sampling_leaves_merged_is_named_before_training(tmp_path):
    # As by default: inputs then ask for a gradient, and nobody is told that no weight gets one.
    settings = {"gradient_checkpointing": True, "max_steps": 4}
    trainer = trainer_in(tmp_path, kind=MergesToSample, adapter="lora", **settings)
    assert "merged" in asked(trainer, "H26").headline


class Lion(torch.optim.Optimizer):
    """With a decay that lacks the rate."""

    def __init__(self, params, lr=1e-3, decay=0.1):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                p.mul_(1 - group["decay"])
                p.add_(p.grad.sign(), alpha=-group["lr"])


def test_a_decay_without_the_rate_is_told_by_its_factor_before_training(tmp_path):
    trainer = trainer_in(tmp_path, max_steps=6)
    trainer.optimizer = Lion(trainer.model.parameters())
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: 1.0)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    found = asked(trainer, "H58")
    assert all(torch.equal(before[name], v) for name, v in trainer.model.state_dict().items())
    assert not trainer.optimizer.state and trainer.optimizer.param_groups[0]["lr"] == 1e-3
    assert found.level is Level.FAULT and "by 0.9," in found.text
