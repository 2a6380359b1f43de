"""verifiers' rollouts, laid out as TRL lays them out; the wheel itself runs in the museum."""

from types import SimpleNamespace

import pytest
import torch

import flatline
from flatline.errors import ConfigError
from flatline.live.verifiers.common import lent
from flatline.live.verifiers.layout import Apart, Sizes
from flatline.live.verifiers.played import played
from flatline.remedies import remedied
from flatline.remedies.served import FIELDS
from flatline.rollout.record import Author


def answer(read, wrote, logps):
    content = [SimpleNamespace(logprob=one) for one in logps]
    choice = SimpleNamespace(
        token_ids=wrote,
        logprobs=SimpleNamespace(content=content),
        message=SimpleNamespace(content="said"),
        finish_reason="stop",
    )
    return SimpleNamespace(prompt_token_ids=read, choices=[choice], weight_version=3)


def test_an_episode_is_what_the_server_says_it_read_and_wrote():
    turns = [answer([1, 2], [7, 8], [-0.1, -0.2]), answer([1, 2, 7, 8, 5], [9], [-0.3])]
    one = played({"responses": turns}, "p")
    assert (one.prompt_ids, one.completion_ids) == ([1, 2], [7, 8, 5, 9])
    own = [author is Author.MODEL for author in one.authors]
    assert own == [True, True, False, True]
    assert one.logprobs == [-0.1, -0.2, 0.0, -0.3]
    assert one.weight_version == 3


def test_a_history_that_was_written_anew_is_no_episode_and_neither_is_one_without_ids():
    rewritten = [answer([1, 2], [7, 8], [0, 0]), answer([1, 2, 7, 5], [9], [0])]
    assert played({"responses": rewritten}, "p") is None
    assert played({"responses": [answer([1], None, [])]}, "p") is None
    assert played({"responses": []}, "p") is None


def test_rows_are_parted_into_prompts_to_the_right_and_completions_to_the_left():
    rows_BL = torch.tensor([[11, 12, 13, 21, 0], [31, 41, 42, 0, 0]])
    apart = Apart([Sizes(3, 1), Sizes(1, 2)], 5)
    ids = apart.ids(rows_BL)
    assert ids["prompt_ids"].tolist() == [[11, 12, 13], [0, 0, 31]]
    assert ids["prompt_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert ids["completion_ids"].tolist() == [[21, 0], [41, 42]]
    logps_BL = torch.tensor([[0.12, 0.13, 0.21, 0.0], [0.41, 0.42, 0.0, 0.0]])  # of the next token
    found = apart.completions(logps_BL, shift=1)
    assert torch.equal(found, torch.tensor([[0.21, 0.0], [0.41, 0.42]]))


def trainer_of_verifiers(**more):
    class GRPOTrainer(SimpleNamespace):
        __module__ = "verifiers.trainers.grpo_trainer"

    return GRPOTrainer(accelerator=SimpleNamespace(num_processes=1), **more)


def test_the_names_that_a_trainer_is_lent_are_taken_back():
    def paid(): ...

    env = SimpleNamespace(get_reward_funcs=lambda: [paid], get_reward_weights=lambda: [1.0])
    trainer = trainer_of_verifiers(use_vllm="own")
    before = dict(vars(trainer))
    with lent(trainer, env, num_generations=4):
        assert trainer.reward_func_names == ["paid"] and trainer.use_vllm is True
        assert trainer.num_generations == 4
    assert vars(trainer) == before


def test_a_checkup_says_why_it_cannot_look_at_verifiers_trainer():
    with pytest.raises(ConfigError, match=r"(?s)GRPOTrainer.*server.*flatline.attach"):
        flatline.checkup(trainer_of_verifiers())


class Processed(SimpleNamespace):
    """What an environment of verifiers makes of a batch."""

    def model_copy(self, update):
        return Processed(**{**vars(self), **update})


def holdable(rows):
    """A trainer of verifiers whose own rendering of a batch is this."""
    own = Processed(**dict(zip(FIELDS, map(list, zip(*rows, strict=True)), strict=True)))
    accelerator = SimpleNamespace(num_processes=1, process_index=0)
    trainer = trainer_of_verifiers(
        _prepare_inputs=None,
        compute_loss=None,
        _get_per_token_logps=None,
        _compute_advantages=None,
        async_generator=None,
        env=SimpleNamespace(process_env_results_vllm=lambda **_: own),
    )
    trainer.accelerator = accelerator
    return trainer, own


SAID = [[1, 2], [7, 8], [1, 1], [0, 0], [-0.1, -0.2]]


def states(*wrote):
    return [{"responses": [answer([1, 2], list(ids), [-0.1] * len(ids))]} for ids in wrote]


def test_a_conversation_is_trained_by_the_ids_that_the_server_read_and_wrote():
    drifted = [[1, 2, 3], [7, 9], [1, 1], [0, 0, 0], [0.0, 0.0]]
    trainer, own = holdable([drifted, SAID])
    with remedied(trainer, ["H10"]) as made:
        found = trainer.env.process_env_results_vllm(states=states([7, 8], [7, 8]), max_seq_len=9)
    assert found.prompt_ids == [[1, 2], [1, 2]]
    assert found.completion_ids == [[7, 8], [7, 8]]
    assert found.completion_logprobs == [[-0.1, -0.1], [-0.1, -0.2]]
    assert made.tallies["H10"].acted == 1
    assert trainer.env.process_env_results_vllm(states=[]) is own


def test_what_is_rendered_as_it_was_sampled_or_was_cut_is_left_as_it_is():
    cut = [[1, 2], [7], [1], [0, 0], [-0.1]]
    trainer, own = holdable([SAID, cut])
    with remedied(trainer, ["H10"]) as made:
        given = states([7, 8], [7, 8, 9])
        assert trainer.env.process_env_results_vllm(states=given, max_seq_len=4) is own
    assert made.tallies["H10"].acted == 0
