"""The log-probs of transformers' `generate`: what the recorder and a checkup hear of it."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import flatline
from flatline.errors import NotRecorded
from flatline.hypotheses import find
from flatline.hypotheses.base import Level
from flatline.hypotheses.logprobs import at_equal_weights
from flatline.live.hooks import Guard, without_adapter
from flatline.live.trl.sampler import Call, drawn, hearing
from flatline.live.trl.subject import TrlSubject
from flatline.rollout.record import Author
from tests.test_attach import GRPOTrainer, recorded, trainer_of
from tests.test_subject import tool_trainer


def first_step(trace):
    """Trained tokens of the step that samples and trains with the same weights."""
    tokens = trace.tokens([1])
    return tokens.sampler[tokens.trained], tokens.trainer[tokens.trained]


def test_a_sampler_that_is_cool_and_padded_has_the_log_probs_of_the_trainer(tmp_path):
    """Other settings: tests/test_attach.py."""
    trace = recorded(trainer_of(tmp_path, temperature=0.7, pad_to_multiple_of=8))
    sampler, trainer = first_step(trace)
    assert len(sampler) and np.abs(sampler - trainer).max() < 1e-4
    assert "sampling_bent" not in trace.run
    assert trace.steps["logprob_gap"][0] < 1e-4
    assert (trace.rollouts["as_sampled"] == 1).all()


def test_rollouts_that_wait_for_another_update_are_compared_with_the_weights_that_sampled(tmp_path):
    trace = recorded(trainer_of(tmp_path, steps_per_generation=2, max_steps=4))
    sampler, trainer = first_step(trace)
    assert np.abs(sampler - trainer).max() > 0.1, "half of them are trained after an update"
    assert np.abs(at_equal_weights(trace).gap).max() < 1e-4


def test_tokens_that_were_cut_off_are_no_part_of_what_was_drawn_from(tmp_path):
    sampler, trainer = first_step(recorded(trainer_of(tmp_path, top_k=5)))
    assert (sampler > trainer).all() and np.isfinite(sampler).all()


def test_what_bends_the_distribution_and_nobody_asked_for_is_named(tmp_path):
    trainer = trainer_of(tmp_path, per_device_train_batch_size=16)
    trainer.generation_config.repetition_penalty = 3.0
    trace = recorded(trainer)
    sampler, scored = first_step(trace)
    bent = trace.run["sampling_bent"]
    assert bent["parameters"] == {"repetition_penalty": 3.0}
    assert bent["unasked"] == ["repetition_penalty"]
    assert bent["nats"] == pytest.approx(np.abs(sampler - scored).mean(), rel=1e-3)
    found = find("H21").sign(trace)
    assert found.level is Level.SUSPECT and "H20" in found.explains


def test_what_was_asked_for_is_no_parameter_that_nobody_asked_for(tmp_path):
    asked = {"repetition_penalty": 3.0, "top_k": 5, "temperature": 0.7}
    bent = recorded(trainer_of(tmp_path, **asked)).run["sampling_bent"]
    assert bent["unasked"] == []
    assert bent["parameters"] == {"repetition_penalty": 3.0, "top_k": 5}


def test_every_turn_of_a_tool_loop_is_heard(tmp_path):
    trainer = tool_trainer(tmp_path)
    subject = TrlSubject(trainer)
    tokens = subject.trace.tokens()
    own = tokens.author == Author.MODEL
    assert (~own).any(), "a tool has answered"
    assert np.abs(tokens.sampler - tokens.trainer)[own & tokens.trained].max() < 1e-4
    assert np.isnan(tokens.sampler[~own]).all()
    assert (subject.trace.rollouts["as_sampled"] == 1).all()


@pytest.mark.parametrize("kind", [{"num_beams": 2}, {"do_sample": False}])
def test_what_draws_from_no_distribution_has_no_log_probs(tmp_path, kind):
    trace = recorded(trainer_of(tmp_path, generation_kwargs=kind))
    with pytest.raises(NotRecorded):
        _ = trace.tokens().sampler
    assert "as_sampled" not in trace.rollouts


@pytest.mark.parametrize("lora", [False, True])
def test_nothing_is_left_on_the_model(tmp_path, lora):
    trainer = trainer_of(tmp_path, lora=lora)
    model = without_adapter(trainer.model)
    before = dict(vars(model))
    with hearing(trainer, Guard()):
        assert vars(model).keys() != before.keys()
        twin = copy.deepcopy(model)
        assert twin.generate.__self__ is twin, "a copy samples with its own weights"
    assert vars(model) == before
    recorded(trainer)
    assert not {"generate", "_get_logits_processor"} & vars(model).keys()


def test_a_compiled_model_is_heard_below_its_shell(tmp_path):
    trainer = trainer_of(tmp_path)
    plain = trainer.model
    trainer.model = trainer.model_wrapped = torch.compile(plain, backend="eager")
    with hearing(trainer, Guard()) as calls, torch.no_grad():
        trainer.model.train()
        trainer._generate_and_score_completions([{"prompt": "Who?"}] * 4)
    assert len(calls) == 1 and calls[0] is not None


def test_a_model_that_is_sampled_elsewhere_is_not_heard(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.use_vllm = True
    before = dict(vars(trainer.model))
    with hearing(trainer, Guard()) as calls:
        assert vars(trainer.model) == before
    assert calls == []


def call(contexts, sampled, logps, ends=(9,)):
    """A call as it would be heard, prompts filled up on the left."""
    width = max(map(len, contexts))
    ids = torch.tensor([[0] * (width - len(one)) + one for one in contexts])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in contexts])
    is_end = torch.isin(torch.tensor(sampled), torch.tensor(ends)).long()
    kept = is_end.cumsum(1) - is_end == 0
    return Call(ids, mask, torch.tensor(sampled), kept, torch.tensor(logps))


def test_later_turns_belong_to_the_rows_that_went_on():
    first = call([[1], [1, 2], [1]], [[3, 9], [4, 9], [3, 4]], [[-1.0, -2], [-3, -4], [-5, -6]])
    second = call([[1, 2, 4, 9, 7], [1, 3, 4, 7]], [[5, 9], [9, 0]], [[-7.0, -8], [-9, -1]])
    trained = [np.array([3, 9]), np.array([4, 9, 7, 5]), np.array([3, 4, 7, 9])]
    one, two, three = drawn([first, second], trained)
    assert one.ids.tolist() == [3, 9]
    assert two.ids.tolist() == [4, 9, 7, 5, 9]
    assert np.array_equal(two.logps, [-3, -4, np.nan, -7, -8], equal_nan=True)
    assert three.ids.tolist() == [3, 4, 7, 9] and three.logps[-1] == -9


def test_a_turn_that_fits_no_row_makes_all_of_them_unknown():
    first = call([[1], [2]], [[3], [4]], [[-1.0], [-2]])
    trained = [np.array([3]), np.array([4])]
    assert drawn([first, call([[2, 5, 6]], [[7]], [[-1.0]])], trained) == []
    second = call([[2, 4, 6]], [[7]], [[-1.0]])
    assert drawn([first, second], [trained[0], np.array([5])]) == []
    assert drawn([first, second], [np.array([3, 6]), trained[1]]) == [], "may be its twin's"
    assert drawn([first, None], trained) == [] and drawn([], trained) == []
    assert drawn([first], [*trained, trained[0]]) == []


def test_a_turn_that_was_asked_for_with_other_ids_shows_what_was_drawn_before_it():
    first = call([[1], [2]], [[3, 9], [4, 9]], [[-1.0, -2], [-3, -4]])
    second = call([[2, 5, 6, 9, 7]], [[8, 9]], [[-5.0, -6]])
    trained = [np.array([3, 9]), np.array([5, 6, 9, 7, 8, 9])]
    one, two = drawn([first, second], trained)
    assert one.ids_beside(trained[0]) is trained[0]
    assert two.ids_beside(trained[1]).tolist() == [4, 9]


def vllm_answer(prompt, *rows):
    """As vLLM's engine answers: ids and log-probs, or None for these."""
    outputs = [
        SimpleNamespace(
            token_ids=ids,
            logprobs=logps
            and [{i: SimpleNamespace(logprob=v)} for i, v in zip(ids, logps, strict=True)],
        )
        for ids, logps in rows
    ]
    return SimpleNamespace(prompt_token_ids=prompt, outputs=outputs)


def test_vllm_in_this_process_says_what_it_read_and_drew(tmp_path):
    answers = [
        vllm_answer([1, 2], ([3, 4], [-0.1, -0.2]), ([5], [-0.3])),
        vllm_answer([6], ([7], None)),
    ]
    trainer = trainer_of(tmp_path)
    trainer.use_vllm, trainer.llm = True, SimpleNamespace(generate=lambda prompts: answers)
    with hearing(trainer, Guard()) as calls:
        assert trainer.llm.generate(["a", "b"]) is answers
    one, two, three = drawn(calls, [np.array([3, 4]), np.array([5]), np.array([7])])
    assert (one.prompt_ids.tolist(), one.ids.tolist()) == ([1, 2], [3, 4])
    assert np.allclose(one.logps, [-0.1, -0.2]) and np.allclose(two.logps, [-0.3])
    assert three.prompt_ids.tolist() == [6] and np.isnan(three.logps).all(), "it gave none"


def test_of_pictures_vllm_is_not_heard(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.use_vllm, trainer.llm = True, SimpleNamespace(generate=lambda prompts: [])
    with hearing(trainer, Guard()) as calls:
        trainer.llm.generate([{"prompt": "a", "multi_modal_data": {}}])
    assert calls == [None]


def test_a_cut_completion_is_as_drawn_and_another_is_not():
    cut, other = np.array([3, 4]), np.array([3, 6, 5, 9])
    (one,) = drawn([call([[1]], [[3, 4, 5, 9]], [[-1.0, -2, -3, -4]])], [cut])
    assert one.ids_beside(cut) is cut
    assert one.ids_beside(other).tolist() == [3, 4, 5, 9]
    assert np.array_equal(one.logps_at(5), [-1, -2, -3, -4, np.nan], equal_nan=True)


# -- what it is good for ----------------------------------------------------------------------


def of_kind(kind, folder, **changes):
    """A user's trainer of this class."""
    trainer = trainer_of(folder, per_device_train_batch_size=16, **changes)
    trainer.__class__ = kind
    return trainer


class OtherIds(GRPOTrainer):
    """Encodes again what was sampled: one id becomes another."""

    def _generate(self, prompts):
        prompt_ids, completion_ids, *others = super()._generate(prompts)
        changed = [
            [*ids[:2], ids[2] + 1, *ids[3:]] if len(ids) > 3 else ids for ids in completion_ids
        ]
        return prompt_ids, changed, *others


class PaddedOnTheRight(GRPOTrainer):
    """Samples behind the padding of shorter prompts, which the model sees."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        width, pad = max(map(len, prompt_ids)), self.processing_class.pad_token_id
        filled = [ids + [pad] * (width - len(ids)) for ids in prompt_ids]
        return super()._generate_single_turn(filled, *args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "hypothesis"),
    [(OtherIds, "H11"), (PaddedOnTheRight, "H10")],
)
def test_a_checkup_of_a_stock_script_names_it(tmp_path, kind, hypothesis):
    report = flatline.checkup(of_kind(kind, tmp_path, temperature=0.7))
    assert report.causes[0].hypothesis == hypothesis, report.summary


def test_a_checkup_of_a_sound_stock_script_hears_its_sampler(tmp_path):
    subject = TrlSubject(of_kind(GRPOTrainer, tmp_path, temperature=0.7))
    for id in ("H10", "H11", "H20", "H21"):
        assert find(id).sign(subject.trace).level is Level.OK
    gaps = subject.delivery()
    assert max(gaps.gap_before, gaps.gap_moved, gaps.gap_restored) < 1e-4
