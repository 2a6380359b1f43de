"""The ways in which people set up TRL: callbacks, PEFT variants, a vLLM server."""

import copy

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import Qwen2Model
from trl import GRPOConfig, GRPOTrainer

import flatline
from flatline.errors import TraceError
from flatline.hypotheses import find
from flatline.hypotheses.base import Level
from flatline.live.inputs import select, trimmed
from flatline.live.measure.played import fixed_logps
from flatline.live.trl.measure.scoring import scoring_logps
from flatline.live.trl.subject import TrlSubject
from flatline.live.trl.trainer import TrlTrainer
from flatline.trace import Trace
from flatline.trace.importers import open_log
from flatline.trace.writer import MemorySink
from tests.tiny import tiny_model, tokenizer_with
from tests.vllm_server import VllmServer, joined

torch.set_num_threads(1)

STOPS = list(range(0, 250, 8))
QUESTIONS = [{"prompt": f"Question {i}?"} for i in range(8)]
SETTINGS = {
    "max_steps": 1,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
}
VARIANTS = {"lora": {}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}}


def letters(completions, **_):
    return [float(len(set(completion))) for completion in completions]


def by_words(completions, **_):
    return [float(len(str(completion))) for completion in completions]


def model_and_tokenizer(stops=STOPS, **changes):
    tokenizer = tokenizer_with()
    model = tiny_model(vocab=len(tokenizer), **changes)
    model.generation_config.eos_token_id = stops
    return model, tokenizer


def trainer_in(
    folder,
    *,
    adapter=None,
    model=None,
    callbacks=None,
    stops=STOPS,
    kind=GRPOTrainer,
    rows=None,
    **changes,
):
    made, tokenizer = model_and_tokenizer(stops)
    lora = {"r": 2, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return kind(
        model=model or made,
        processing_class=tokenizer,
        reward_funcs=letters,
        args=GRPOConfig(output_dir=str(folder), **{**SETTINGS, **changes}),
        train_dataset=rows or Dataset.from_list(QUESTIONS),
        peft_config=None if adapter is None else LoraConfig(**lora, **VARIANTS[adapter]),
        callbacks=callbacks,
    )


def trained(trainer):
    torch.manual_seed(1)
    trainer.train()
    return [p.detach().clone() for p in trainer.model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def found(report, code):
    return next(one for one in report.findings if one.hypothesis == code)


def asked(trainer, code):
    """What one hypothesis says of a live trainer. A checkup by all of them costs far more."""
    return found(flatline.checkup(trainer, hypotheses=[find(code)]), code)


def told(trace, code):
    """The same of a recorded run."""
    return found(flatline.diagnose(trace, hypotheses=[find(code)]), code)


# -- a run of TRL as it is


def test_what_trl_recorded_and_what_it_saved_are_diagnosed_without_an_alarm(tmp_path):
    trainer = trainer_in(tmp_path / "out", max_steps=4, learning_rate=1e-4)
    flatline.attach(trainer, tmp_path / "run")
    trained(trainer)
    trainer.save_state()
    saved = open_log(tmp_path / "out")
    assert saved.run["source"] == "import:trl" and saved.run["unrecognised"] == []
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert saved.steps["reward"].tolist() == rewards and len(rewards) == 4
    for log in (saved, Trace.open(tmp_path / "run")):
        assert [one.text for one in flatline.diagnose(log).alarms] == []


# -- FlatlineCallback


def test_a_callback_records_what_attach_records(tmp_path):
    one, other = MemorySink(), MemorySink()
    attached = trainer_in(tmp_path / "a")
    flatline.attach(attached, one)
    called = trainer_in(tmp_path / "b", callbacks=[flatline.FlatlineCallback(other)])
    assert same(trained(attached), trained(called))
    by_line, by_callback = one.trace(), other.trace()
    assert len(by_callback.rollouts) == 8 and len(by_callback.steps) == 1
    assert by_line.rollouts["completion"].tolist() == by_callback.rollouts["completion"].tolist()
    assert np.array_equal(by_line.tokens().trainer, by_callback.tokens().trainer)


def test_a_callback_goes_on_in_the_same_trace_when_training_goes_on(tmp_path):
    callback = flatline.FlatlineCallback(tmp_path / "run")
    trainer = trainer_in(tmp_path / "out", callbacks=[callback])
    assert callback.attachment is None, "nothing is touched before training"
    trainer.train()
    first = callback.attachment
    trainer.train()
    assert callback.attachment is first and not first.failed
    assert flatline.Trace.open(tmp_path / "run").steps["step"].tolist() == [1]


def test_a_callback_that_no_trainer_has_says_what_to_do_instead(tmp_path):
    with pytest.raises(TraceError, match=r"flatline\.attach"):
        flatline.FlatlineCallback(tmp_path).on_train_begin(None, None, None)


# -- PEFT


@pytest.mark.parametrize("adapter", ("lora", "dora"))
def test_adapters_of_every_kind_are_recorded_and_looked_at(tmp_path, adapter):
    plain, watched = (trainer_in(tmp_path / name, adapter=adapter) for name in "ab")
    report = flatline.checkup(watched)
    assert not [one.text for one in report.findings if "defect of flatline" in one.text]
    assert not [one.text for one in report.findings if one.level is Level.FAULT]
    assert report.tested > 15
    sink = MemorySink()
    flatline.attach(watched, sink)
    assert same(trained(plain), trained(watched)), "neither of them leaves a mark"
    names = set(sink.trace().weights["name"])
    assert any("lora_A" in name for name in names)
    assert any("magnitude" in name for name in names) == (adapter == "dora")


# -- a vLLM server


def served(folder, monkeypatch, server, **changes):
    made = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url}
    with joined(server, monkeypatch):
        return trainer_in(folder, **made, **changes)


@pytest.mark.parametrize("adapter", [None, "lora"])
def test_a_run_with_a_vllm_server_is_recorded_with_the_servers_log_probs(
    tmp_path, monkeypatch, adapter
):
    with VllmServer(model_and_tokenizer()[0]) as server:
        trainer = served(tmp_path, monkeypatch, server, adapter=adapter, max_steps=2)
        sink = MemorySink()
        flatline.attach(trainer, sink)
        trained(trainer)
    trace = sink.trace()
    tokens = trace.tokens()
    assert trace.settings["engine"] == "vllm-server" and len(trace.rollouts) == 16
    assert "weight_version" not in trace.rollouts, "which weights the server has, it does not say"
    assert np.abs(tokens.sampler - tokens.trainer).max() < 1e-4
    assert server.heard.count("/update_weights") == 2, "weights are sent before every step's play"


def test_a_checkup_of_a_run_with_a_vllm_server_finds_nothing_and_leaves_no_mark(
    tmp_path, monkeypatch
):
    weights = []
    for name in ("plain", "looked-at"):
        with VllmServer(model_and_tokenizer()[0]) as server:
            trainer = served(tmp_path / name, monkeypatch, server)
            if name == "looked-at":
                dice = copy.deepcopy(server._dice.get_state())
                report = flatline.checkup(trainer)
                server._dice.set_state(dice)  # the server's own random numbers are not TRL's
            weights.append(trained(trainer))
    assert not [one.text for one in report.findings if one.level is Level.FAULT]
    assert not [one.text for one in report.findings if "defect of flatline" in one.text]
    for code in ("H06", "H54", "H55", "H56", "H57"):
        assert found(report, code).level is Level.OK, "its importance correction is specified"
    assert same(*weights)


def test_a_vllm_server_that_forgets_what_it_is_sent_is_found(tmp_path, monkeypatch):
    with VllmServer(model_and_tokenizer()[0], deaf=True) as server:
        assert asked(served(tmp_path, monkeypatch, server), "H06").level is Level.FAULT


TOLD = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if thinking | default(true) %}<think>\n{% endif %}"
)


@pytest.mark.parametrize("heard", [True, False])
def test_chats_that_a_vllm_server_samples_behind_are_held_against_the_template_and_its_arguments(
    tmp_path, monkeypatch, heard
):
    chats = [{"prompt": [{"role": "user", "content": f"Question {i}?"}]} for i in range(8)]
    more = {"rows": Dataset.from_list(chats), "chat_template_kwargs": {"thinking": False}}
    with VllmServer(model_and_tokenizer()[0]) as server:
        trainer = served(tmp_path, monkeypatch, server, **more)
        trainer.reward_funcs[:] = [by_words]
        trainer.processing_class.chat_template = TOLD
        if not heard:
            trainer.chat_template_kwargs = {}
        assert asked(trainer, "H49").level is (Level.OK if heard else Level.FAULT)


# -- completions that are left out of the loss


def all_cut(folder, **changes):
    """No completion ends by itself, and those that are cut carry no loss."""
    changes |= {"mask_truncated_completions": True, "max_completion_length": 3}
    no_end = {"suppress_tokens": [261, 266]}
    return trainer_in(folder, stops=[261], generation_kwargs=no_end, **changes)


def test_a_checkup_names_the_mask_where_every_completion_is_cut_and_left_out(tmp_path):
    report = flatline.checkup(all_cut(tmp_path, per_device_train_batch_size=16))
    cause = report.causes[0]
    assert (cause.hypothesis, cause.level) == ("H04", Level.FAULT)
    assert "mask_truncated_completions=True" in cause.text
    assert [one.hypothesis for one in report.causes] == ["H04"]
    assert found(report, "H26").level is Level.FAULT, "true, and its symptom"
    assert found(report, "H06").level is Level.UNKNOWN
    assert not [one.text for one in report.alarms if "nan" in one.text]


def test_rollouts_without_loss_have_no_part_in_what_is_measured(tmp_path):
    trainer = trainer_in(
        tmp_path,
        mask_truncated_completions=True,
        max_completion_length=3,
        stops=list(range(0, 250, 3)),
        per_device_train_batch_size=16,
    )
    subject = TrlSubject(trainer)
    used = set(np.flatnonzero(subject.trace.rollouts["trained_tokens"] > 0))
    assert 0 < len(used) < 16, "some are left out, some are not"
    assert set(subject.one_step().rollouts) <= used
    assert set(subject.alone_vs_batch(16).rollouts) <= used
    assert not [one.text for one in flatline.checkup(trainer).findings if one.level is Level.FAULT]


# -- other trainers, other data


def test_streamed_data_is_looked_at_as_far_as_it_can_be(tmp_path):
    streamed = Dataset.from_list(QUESTIONS).to_iterable_dataset()
    trainer = trainer_in(tmp_path, rows=streamed, accelerator_config={"dispatch_batches": False})
    report = flatline.checkup(trainer)
    assert not [one.text for one in report.findings if "defect of flatline" in one.text]
    assert "streamed" in found(report, "H44").text
    assert not [one.text for one in report.findings if one.level is Level.FAULT]


# -- one token is little to go by


@pytest.mark.parametrize("seed", range(2))
def test_single_tokens_that_stay_the_same_by_chance_are_no_fault(tmp_path, seed, monkeypatch):
    monkeypatch.setattr("flatline.live.trl.measure.scoring.drawn", lambda *_: [])  # no log-probs
    torch.manual_seed(seed)
    trainer = trainer_in(tmp_path, max_completion_length=1, seed=seed)
    assert asked(trainer, "H06").level is Level.UNKNOWN


def test_a_sampler_that_never_hears_of_new_weights_is_found_without_log_probs(tmp_path):
    trainer = trainer_in(tmp_path, max_completion_length=32, stops=[261])
    old = model_and_tokenizer(stops=[261])[0]
    sample = trainer._generate_single_turn

    def stale(*args, **kwargs):
        held, trainer.model_wrapped = trainer.model_wrapped, old
        try:
            return sample(*args, **kwargs)
        finally:
            trainer.model_wrapped = held

    trainer._generate_single_turn = stale
    assert asked(trainer, "H06").level is Level.FAULT


# -- images


class Seeing(Qwen2Model):
    """Adds to every token of a row what its image shows, as Qwen's vision models are given it."""

    shown_BD = None
    """What a sampler sees that is not handed images."""

    def forward(self, input_ids, pixel_values=None, image_grid_thw=None, **kwargs):
        kwargs.pop("inputs_embeds", None)
        words_BTD = self.embed_tokens(input_ids)
        if self.shown_BD is not None:
            words_BTD = words_BTD + self.shown_BD[:, None]
        if pixel_values is not None:
            parts = pixel_values.split(image_grid_thw.prod(-1).tolist())
            words_BTD = words_BTD + torch.stack([part.mean(0) for part in parts])[:, None]
        return super().forward(inputs_embeds=words_BTD, **kwargs)


class VisionTrainer(GRPOTrainer):
    """One image for each row, all of different sizes."""

    def _generate_and_score_completions(self, inputs):
        found = super()._generate_and_score_completions(inputs)
        sizes = [2 + row["picture"] for row in inputs]
        shown = [torch.full((size, 32), 0.1 * size) for size in sizes]
        found["pixel_values"] = torch.cat(shown)
        found["image_grid_thw"] = torch.tensor([[1, 1, size] for size in sizes])
        return {**found, "num_images": [1] * len(sizes)}


def seeded(number):
    return torch.Generator().manual_seed(number)


class LookingTrainer(VisionTrainer):
    """Its sampler sees images as well, all of one size. `turned` is by how many rows those that are
    scored with are off."""

    turned = 0

    def _generate_and_score_completions(self, inputs):
        seeing = self.accelerator.unwrap_model(self.model).model
        shown = [torch.randn(32, generator=seeded(row["picture"])) for row in inputs]
        seeing.shown_BD = torch.stack(shown)
        try:
            found = GRPOTrainer._generate_and_score_completions(self, inputs)
        finally:
            seeing.shown_BD = None
        found["pixel_values"] = torch.stack(shown).roll(self.turned, 0).repeat_interleave(2, 0)
        found["image_grid_thw"] = torch.tensor([[1, 1, 2]] * len(shown))
        return {**found, "num_images": [1] * len(shown)}


class BlindTrainer(LookingTrainer):
    def _get_per_token_logps_and_entropies(self, *args, pixel_values=None, **kwargs):
        kwargs.pop("image_grid_thw", None)
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)


def vision_trainer(folder, kind=VisionTrainer, **changes):
    model = model_and_tokenizer()[0]
    model.model.__class__ = Seeing
    rows = [{**row, "picture": i} for i, row in enumerate(QUESTIONS)]
    changes |= {"rows": Dataset.from_list(rows), "remove_unused_columns": False}
    return trainer_in(folder, model=model, kind=kind, **changes)


def test_a_rollout_is_scored_with_its_own_image_wherever_it_stands(tmp_path):
    trainer = vision_trainer(tmp_path)
    subject = TrlSubject(trainer)
    inputs, whole = subject._played.inputs, subject._logps_BT
    assert len(inputs["pixel_values"]) != len(inputs["prompt_ids"])
    trained_BT = subject._played.trained_BT
    for row in (0, 3, 7):
        alone = fixed_logps(TrlTrainer(trainer, None, None), trimmed(select(inputs, [row])))[0]
        kept = trained_BT[row, : len(alone)]
        assert torch.allclose(alone[kept], whole[row, : len(alone)][kept], atol=1e-5)
    scored = scoring_logps(trainer, inputs)
    assert torch.allclose(scored[trained_BT], whole[trained_BT], atol=1e-5)


def test_a_trainer_with_images_is_looked_at_without_a_defect_or_a_fault(tmp_path):
    report = flatline.checkup(vision_trainer(tmp_path))
    assert not [one.text for one in report.findings if "defect of flatline" in one.text]
    assert not [one.text for one in report.findings if one.level is Level.FAULT]
    assert found(report, "H15").level is Level.OK


@pytest.mark.parametrize(
    ("kind", "turned", "level", "text"),
    [
        (LookingTrainer, 0, Level.OK, "its own image"),
        (LookingTrainer, 4, Level.FAULT, "of another prompt"),
        (BlindTrainer, 0, Level.FAULT, "not see"),
    ],
)
def test_a_rollout_must_be_scored_with_the_image_it_was_sampled_with(
    tmp_path, kind, turned, level, text
):
    trainer = vision_trainer(tmp_path, kind)
    trainer.turned = turned
    told = asked(trainer, "H67")
    assert told.level is level and text in told.text
