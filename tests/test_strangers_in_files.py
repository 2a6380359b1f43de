"""What the fifth and the sixth round of scripts that strangers could have written showed."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.h03_kl_divergence import KlDivergence
from flatline.hypotheses.h04_context_truncation import ContextTruncation
from flatline.hypotheses.h05_reward_signal import _noise
from flatline.hypotheses.h41_tool_errors import _begun_call, _whole_call
from flatline.live.trl.departure.unearned import judge_ambiguous, judge_labels, judge_leaked
from flatline.live.trl.recorder.rows import _meets
from flatline.trace import Trace
from tests.test_strangers import CHATML, OPENING, chatting
from tests.test_trl_breadth import asked, trainer_in
from tests.traces import run_facts, trace_of

torch.set_num_threads(1)


class Anchored(GRPOTrainer):
    """Adds a term of its own to the loss: a pull of the output layer towards 0."""

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        return loss + 0.1 * model.get_output_embeddings().weight.square().mean()


def test_a_term_that_somebodys_own_loss_adds_is_told_and_is_no_fault(tmp_path):
    trainer = trainer_in(tmp_path, kind=Anchored)
    assert asked(trainer, "H56").level is Level.NOTE
    assert asked(trainer, "H57").level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("paid", "harmless"),
    [([0, 1, 1, 0], True), ([-1, 1] * 4, True), ([0] * 9 + [1], False), ([0, 0.5, 1], False)],
)
def test_answers_that_are_all_cut_off_and_often_right_lose_nothing(paid, harmless):
    found = ContextTruncation().sign(trace_of([paid] * 12, finish="length"))
    assert found.level is (Level.NOTE if harmless else Level.SUSPECT)


def test_a_judge_whose_mood_is_a_small_part_of_what_differs_decides_little():
    reward, group = np.array([1.0, 0.9, 0.0, 0.1]), np.zeros(4, int)
    assert _noise(reward, [(0, 1), (2, 3)], group) < 0.05
    assert _noise(np.array([1.0, 0.0, 0.0, 1.0]), [(0, 1), (2, 3)], group) > 0.5


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>', True),
        ("<tool_call><function=look></function></tool_call>", True),
        ("[TOOL_CALLS] look", True),
        ('<tool_call>\n{"<tool_response>', False),
        ("<tool_call>look</tool_call>", False),
        ("Nothing to call.", False),
    ],
)
def test_a_call_that_is_broken_is_the_policys_and_not_the_parsers(text, whole):
    assert _whole_call(text) is whole
    assert _begun_call(text) is ("Nothing" not in text)


def test_an_episode_that_ends_near_a_short_limit_was_not_cut_by_it():
    assert not _meets(5, 6) and _meets(6, 6)
    assert _meets(511, 512) and not _meets(500, 512)


@pytest.mark.parametrize(("dropout", "level"), [(0.05, Level.OK), (None, Level.FAULT)])
def test_a_small_kl_at_the_start_is_what_dropout_makes(dropout, level):
    steps = [{"step": k + 1, "kl": 0.004} for k in range(8)]
    run = run_facts(beta=0.04, bf16=False, dropout=dropout)
    assert KlDivergence().sign(Trace.from_rows(run=run, steps=steps)).level is level


def test_a_reward_model_of_several_labels_is_paid_by_its_first():
    def judged(labels, paid=torch.nn.Identity):
        model = paid()
        model.config = SimpleNamespace(num_labels=labels, id2label={0: "wrong", 1: "right"})
        return judge_labels(SimpleNamespace(reward_funcs=[model], reward_func_names=["verifier"]))

    assert judged(1) is None
    assert "2 labels" in judged(2).text and "'wrong'" in judged(2).text
    assert judged(2, paid=SimpleNamespace) is None, "a judge of somebody's own is asked, not read"


def leaked(rows):
    data = Dataset.from_list([{"prompt": prompt, "answer": gold} for prompt, gold in rows])
    return judge_leaked(SimpleNamespace(train_dataset=data, reward_funcs=[]))


SUMS = [(f"{a}+{b}=", str(a + b)) for a in range(4) for b in range(4)]


def test_prompts_whose_examples_hold_their_own_question_are_named():
    assert "16 of 16 prompts" in leaked([(f"9+9=18\n{q}{a}\n{q}", a) for q, a in SUMS]).text
    chats = [
        ([{"role": role, "content": said} for role, said in zip("uau", (q, a, q), strict=True)], a)
        for q, a in SUMS
    ]
    assert leaked(chats) is not None


def test_examples_of_other_questions_and_texts_that_hold_the_answer_leak_nothing():
    assert leaked([(f"9+9=18\n8+8=16\n{q}", a) for q, a in SUMS]) is None
    assert leaked([(f"The box of {q} holds {a} pens.\nHow many? {q}", a) for q, a in SUMS]) is None
    assert leaked([(f"{a}\nRepeat the number:", a) for _, a in SUMS]) is None


def test_a_message_that_the_template_leaves_out_is_a_fault(tmp_path):
    only_users = "{% for m in messages %}{% if m.role == 'user' %}" + CHATML[25:-12]
    rows = [
        {
            "prompt": [
                {"role": "system", "content": "Add the numbers."},
                {"role": "user", "content": f"{i} and 3"},
            ]
        }
        for i in range(8)
    ]

    def prompts_of(template):
        trainer = chatting(tmp_path, template + OPENING, "What is ")
        trainer.train_dataset = Dataset.from_list(rows)
        return asked(trainer, "H49")

    left_out = prompts_of(only_users + "{% endif %}{% endfor %}")
    assert left_out.level is Level.FAULT and not left_out.where
    assert prompts_of(CHATML).level not in ALARMS


def ambiguous(rows, **players):
    data = Dataset.from_list([{"prompt": prompt, "answer": gold} for prompt, gold in rows])
    return judge_ambiguous(SimpleNamespace(train_dataset=data, reward_funcs=[], **players))


def test_one_prompt_with_several_right_answers_is_named_unless_somebody_plays_on():
    cut = [(f"Box {k // 2}", str(k)) for k in range(32)]
    assert "32 of 32 rows" in ambiguous(cut).text
    assert ambiguous(cut, rollout_func=print) is None
    assert ambiguous([(f"Box {k // 2}", str(k // 2)) for k in range(32)]) is None
