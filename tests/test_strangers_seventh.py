"""What the seventh round of scripts that strangers could have written showed."""

import pytest
import torch
from trl import GRPOConfig

from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.h14_end_of_sequence import EndOfSequence
from flatline.hypotheses.h32_zero_variance_groups import ZeroVarianceGroups
from flatline.hypotheses.h39_reward_parser import RewardParser
from flatline.hypotheses.h68_verifier_failures import VerifierFailures
from flatline.live.batch import Padded
from flatline.live.trl.settings import settings
from tests.test_trl_breadth import asked, told, trainer_in
from tests.traces import run_facts, trace_of

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("form", "level"),
    [("n={}.", Level.UNKNOWN), ("so {}", Level.UNKNOWN), ("{}", Level.SUSPECT)],
)
def test_a_reward_that_asks_for_a_form_does_not_misread_bare_answers(form, level):
    """The best pay goes to gold in that form, or (a fault) to no completion that holds gold."""
    texts = [form.format(3) if form != "{}" else "n=9.", "3", "3", "4", "5", "n=7."] * 8
    rewards = [[1.0, -1.0, -1.0, -1.0, -1.0, -0.5]] * 8
    found = RewardParser().sign(trace_of(rewards, completion=texts, gold="3", finish="eos"))
    assert found.level is level, found.text


def test_what_stands_on_padding_is_no_advantage_of_its_own():
    ids, seen = torch.ones(1, 3, dtype=torch.long), torch.tensor([[1, 1, 0]])
    rows = {"completion_ids": ids, "completion_mask": seen}
    padding = Padded({**rows, "advantages": torch.tensor([[0.5, 0.5, 9.0]])}, 0)
    own = Padded({**rows, "advantages": torch.tensor([[0.5, 0.7, 0.5]])}, 0)
    assert not padding.of_tokens and own.of_tokens


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"load_best_model_at_end": True}, Level.SUSPECT),
        ({"load_best_model_at_end": True, "metric_for_best_model": "eval_reward"}, None),
        (
            {
                "load_best_model_at_end": True,
                "metric_for_best_model": "eval_reward",
                "greater_is_better": False,
            },
            Level.SUSPECT,
        ),
    ],
)
def test_weights_that_are_chosen_by_the_loss_are_not_the_best_ones(tmp_path, given, level):
    evaluated = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"}
    args = GRPOConfig(output_dir=str(tmp_path), bf16=False, save_steps=2, **evaluated, **given)
    trainer = trainer_in(tmp_path)
    for name in ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"):
        setattr(trainer.args, name, getattr(args, name))
    trace = trace_of([[0.0, 1.0]], run=run_facts(best_model_by=settings(trainer)["best_model_by"]))
    for found in (asked(trainer, "H08"), told(trace, "H08")):
        assert (found.level is level) if level else (found.level not in ALARMS), found.text


@pytest.mark.parametrize(
    ("rewards", "said", "blind"),
    [
        ([[k / 4] * 4 for k in range(4)] * 5, "abcd", True),
        ([[k % 2] * 4 for k in range(4)] * 5, "abcd", False),  # always solved, or never
        ([[k / 4] * 4 for k in range(4)] * 5, "aaaa", False),  # a policy that says one thing
        ([[0.0, 0.25, 0.5, k / 4] for k in range(4)] * 5, "abcd", False),
    ],
)
def test_a_reward_that_the_prompt_alone_decides_is_told_from_problems_of_every_kind(
    rewards, said, blind
):
    found = ZeroVarianceGroups().sign(trace_of(rewards, completion=list(said) * 20))
    assert ("the prompt alone decides the reward" in found.text) is blind


ON = "4<|end|><|user|>what is 2+2?<|end|><|assistant|>4"


@pytest.mark.parametrize(
    ("says", "finish", "level"),
    [
        (ON, "length", Level.SUSPECT),
        (ON, "eos", Level.OK),
        ("4<|end|><|end|><|end|>", "length", Level.UNKNOWN),
    ],
)
def test_completions_that_go_on_with_the_next_turn_have_another_end_token(says, finish, level):
    rewards, prompt = [[0.0, 1.0] * 4] * 8, "<|user|>what is 1+3?<|end|><|assistant|>"
    counts = {"completion_tokens": 64, "trained_tokens": 64}
    trace = trace_of(rewards, completion=says, prompt=prompt, finish=finish, **counts)
    found = EndOfSequence().sign(trace)
    assert found.level is level, found.text
    assert ("H04" in found.explains) is (level is Level.SUSPECT)


@pytest.mark.parametrize(("tools", "reset"), [(None, True), (0, False)])
def test_where_a_player_of_ones_own_stands_between_its_reset_is_asked_about(tools, reset):
    rewards, said = [[0.0, 1.0, 1.0, 0.0]] * 8, ["a", "b", "a", "b"] * 8
    trace = trace_of(rewards, completion=said, run=run_facts(tools=tools))
    found = VerifierFailures().sign(trace)
    assert found.level is Level.SUSPECT
    assert ("reset" in found.text) is ("Reset" in found.fix) is reset
