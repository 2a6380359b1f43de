"""What the seventh round of scripts that strangers could have written showed."""

import re

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

import flatline
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.h14_end_of_sequence import EndOfSequence
from flatline.hypotheses.h32_zero_variance_groups import ZeroVarianceGroups
from flatline.hypotheses.h39_reward_parser import RewardParser
from flatline.hypotheses.h68_verifier_failures import VerifierFailures
from flatline.live.batch import Padded
from flatline.live.trl.settings import settings
from flatline.trace.writer import MemorySink
from tests.test_strangers import CHATML, OPENING, chatting
from tests.test_trl_breadth import asked, told, trainer_in
from tests.test_watch_heads import LIMIT, PROMPT, ROWS, Recurrent, by_hand
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


def test_a_part_that_pays_for_the_form_alone_excuses_no_unpaid_answer():
    texts = ["ans=3", "ans=4", "ans=5", "3", "3", "sum=4"] * 8
    rewards = [[0.5, 0.5, 0.5, 0.0, 0.0, 0.0]] * 8
    parts = [{"accuracy": 0.0, "form": reward} for reward in rewards[0] * 8]
    trace = trace_of(rewards, completion=texts, gold="3", finish="eos", parts=parts)
    assert RewardParser().sign(trace).level is Level.SUSPECT


def test_an_answer_in_tags_is_not_held_against_a_reward_of_several_values_that_wants_a_box():
    texts = ["\\boxed{3}", "<answer>3</answer>", "<answer>4</answer>", "\\boxed{5}"] * 8
    rewards = [[1.0, -1.0, -1.0, -0.8]] * 8
    found = RewardParser().sign(trace_of(rewards, completion=texts, gold="3", finish="eos"))
    assert found.level not in ALARMS, found.text


class RewardToGo(GRPOTrainer):
    """Tokens have advantages of their own, which only a formula of the user's makes."""

    more = 1.0

    def _generate_and_score_completions(self, inputs):
        found = super()._generate_and_score_completions(inputs)
        length = found["completion_ids"].shape[1]
        later = torch.arange(length) * self.more
        found["advantages"] = found["advantages"][:, None] - 1.0 + later
        return found


class Shifted(RewardToGo):
    """One advantage for all tokens of a row, and a wrong one."""

    more = 0.0


def recorded(trainer):
    sink = MemorySink()
    flatline.attach(trainer, sink)
    trainer.train()
    return sink.trace()


@pytest.mark.parametrize(("kind", "level"), [(RewardToGo, None), (Shifted, Level.FAULT)])
def test_advantages_of_tokens_are_held_against_no_formula_of_rows(tmp_path, kind, level):
    trace = recorded(trainer_in(tmp_path, kind=kind))
    found = told(trace, "H53")
    assert bool(trace.run.get("advantages_of_tokens")) is (level is None)
    assert (found.level is level) if level else (found.level not in ALARMS)
    assert told(trace, "H33").level not in ALARMS


def test_what_stands_on_padding_is_no_advantage_of_its_own():
    ids, seen = torch.ones(1, 3, dtype=torch.long), torch.tensor([[1, 1, 0]])
    rows = {"completion_ids": ids, "completion_mask": seen}
    padding = Padded({**rows, "advantages": torch.tensor([[0.5, 0.5, 9.0]])}, 0)
    own = Padded({**rows, "advantages": torch.tensor([[0.5, 0.7, 0.5]])}, 0)
    assert not padding.of_tokens and own.of_tokens


def reused(folder, objective):
    """A watched loop that trains each of four generations three times."""
    torch.manual_seed(0)
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with flatline.watch(model, optimizer, folder) as watch:
        for _ in range(4):
            rows = by_hand(model)
            reward = torch.arange(float(ROWS)) % 4
            watch.rewards(reward.tolist())
            old = None
            for _ in range(3):
                logp = model(rows)[0][:, PROMPT - 1 : -1].log_softmax(-1)
                logp = logp.gather(2, rows[:, PROMPT:, None])[..., 0]
                old = logp.detach() if old is None else old
                optimizer.zero_grad()
                advantage = (reward - 1.5)[:, None]
                (-objective(logp, old, advantage).sum() / ROWS / LIMIT).backward()
                optimizer.step()
    trace = flatline.Trace.open(folder)
    return {code: told(trace, code) for code in ("H33", "H53", "H55")}


@pytest.mark.parametrize(
    ("objective", "named"),
    [
        (lambda new, old, a: (new - old).exp() * a, None),
        (lambda new, old, a: new * a, None),
        (lambda new, old, a: (old - new).exp() * a, "H55"),
        (lambda new, old, a: -new * a, "H53"),
    ],
    ids=["ratio", "no ratio", "upside down", "negated"],
)
def test_a_ratio_that_is_upside_down_is_told_from_a_loss_of_the_wrong_sign(
    tmp_path, objective, named
):
    found = reused(tmp_path, objective)
    alarms = [code for code, one in found.items() if one.level in ALARMS]
    assert alarms == ([named] if named else [])


def thought(*, says="so it is\n</think>3", prompt="What?<think>", form=0.0, whole=0.0, gold="3"):
    """A run of 8 prompts whose template opens the thought."""
    rewards = [[form + whole] * 8 for _ in range(8)]
    parts = {"think_format": form, "accuracy": whole}
    return trace_of(rewards, completion=says, prompt=prompt, gold=gold, finish="eos", parts=parts)


def test_a_tag_that_the_prompt_holds_is_told_from_answers_that_are_wrong():
    found = RewardParser().sign(thought())
    assert found.level is Level.SUSPECT and "`<think>`" in found.headline
    assert "64 of these" in found.text


@pytest.mark.parametrize(
    "healthy",
    [
        {"form": 1.0},  # paid: the function knows of the tag
        {"prompt": "What?"},
        {"prompt": "What?<|assistant|>"},
        {"says": "<think>so it is\n</think>3"},
        {"says": "so it is"},
    ],
)
def test_a_reward_that_pays_or_a_prompt_without_the_tag_is_no_tag_in_vain(healthy):
    found = RewardParser().sign(thought(**({"form": 0.0, "whole": 1.0} | healthy)))
    assert "it is in the prompt" not in found.headline


def test_a_part_about_something_else_that_is_never_earned_is_noted_at_most():
    trace = trace_of(
        [[0.0] * 8] * 8,
        completion="so\n</think>4",
        prompt="What?<think>",
        gold="3",
        finish="eos",
        parts={"solved": 0.0},
    )
    assert RewardParser().sign(trace).level is Level.NOTE


@pytest.mark.parametrize(("pattern", "named"), [(r"<think>", True), (r"", False)])
def test_a_function_that_pays_once_the_tag_is_in_front_is_named_by_a_checkup(
    tmp_path, pattern, named
):
    def opens(completions, **_):
        said = [one[0]["content"] for one in completions]
        return [float(bool(re.match(pattern, text))) for text in said]

    trainer = chatting(
        tmp_path, CHATML + OPENING + "{% if add_generation_prompt %}<think>{% endif %}", "What is "
    )
    trainer.reward_funcs = [opens]
    trainer.reward_func_names = ["opens"]
    found = asked(trainer, "H52")
    assert ("it is in the prompt" in found.headline) is named, found.text


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({}, None),
        ({"metric_for_best_model": "eval_reward"}, None),
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
        ("4 and 4 and 4 and 4 and", "length", Level.UNKNOWN),
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
