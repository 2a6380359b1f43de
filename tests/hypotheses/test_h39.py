"""H39 reward-parser."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, healthy_trace, run_facts, trace_of

from flatline.hypotheses.answers import given_answer
from flatline.hypotheses.base import Level
from flatline.hypotheses.h39_reward_parser import RewardParser
from flatline.trace import Trace

H = RewardParser()


def changed(change, steps=6):
    rows = healthy_rows(steps=steps)
    for row in rows["rollouts"]:
        row |= change(row)
    return Trace.from_rows(run=run_facts(), **rows)


def misread(row):
    """Right answers of most prompts earn nothing."""
    hit = row["parts"]["exact_match"] and row["group"] % 8 < 6
    return {"reward": 0.0, "parts": {"exact_match": 0.0, "format": 0.0}} if hit else {}


def case(reward, gold, script="gold"):
    return SimpleNamespace(problem="p", script=script, reward=reward, gold_reward=gold)


def oracle(gold=(1.0,) * 8, below=(), above=(), played=40):
    found = SimpleNamespace(
        problems=len(gold),
        gold_R=np.array(gold),
        below_maximum=tuple(below),
        not_below_gold=tuple(above),
        played=played,
    )
    return SimpleNamespace(oracle=lambda: found, trace=healthy_trace(steps=1))


def perfect(row):
    tidy = row["parts"]["format"]
    parts = {"exact_match": 1.0, "format": tidy}
    return {"reward": 0.9 + 0.1 * tidy, "parts": parts, "completion": "<answer>right</answer>"}


def boxed(row):
    right = row["parts"]["exact_match"]
    strange = right and row["rollout"] % 2
    parts = {"exact_match": 0.0 if strange else right, "format": 1.0}
    return {"parts": parts} | ({"completion": "\\boxed{right}"} if strange else {})


def test_rollouts_that_a_limit_cut_off_do_not_count():
    assert H.sign(changed(lambda row: {**misread(row), "finish": "turn_length"})).level in (
        Level.UNKNOWN,
        Level.NOTE,
    )


def test_no_right_answer_says_nothing_and_no_gold_is_said():
    wrong = changed(lambda row: {"completion": "<answer>wrong</answer>", "reward": 0.5})
    assert H.sign(wrong).level in (Level.UNKNOWN, Level.NOTE)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer> 12 </answer>", "12"),
        ("thus \\boxed{12}", "12"),
        ("it is\n#### 1,200<|im_end|>", "1,200"),
        ("<think><answer>3</answer></think><answer>4</answer>", "4"),
        ("<answer>3</answer> or <answer>4</answer>", None),
        ("<answer>3</answer><|im_start|>assistant\nI do not know", None),
        ("nothing", None),
        ("<answer></answer>", None),
    ],
)
def test_only_a_single_marked_answer_of_the_last_message_is_read(text, answer):
    found = given_answer(text)
    assert (found[1] if found else None) == answer


def test_the_probe_leaves_noise_to_h05_and_a_saturated_reward_to_h32():
    noisy = tuple(np.random.default_rng(0).normal(1, 1, 8))
    below = [case(value, value) for value in noisy if value < 1]
    assert "H05" in H.probe(oracle(gold=noisy, below=below)).text
    assert "H32" in H.probe(oracle(above=[case(1.0, 1.0, "x")] * 30)).text


def test_the_probe_also_looks_at_the_batch_that_was_played():
    subject = oracle()
    subject.trace = changed(misread, steps=1)
    assert H.probe(subject).level is Level.SUSPECT


def lenient(row):
    wrong = row["rollout"] % 2
    paid = {"parts": {"exact_match": 1.0, "format": 1.0}, "reward": 1.0}
    return {"gold": "42", "completion": f"<answer>{(7 if wrong else 42)}</answer>", **paid}


def test_other_words_that_are_paid_as_right_may_be_aliases():
    def alias(row):
        words = "the Big Apple" if row["rollout"] % 2 else "New York"
        paid = {"parts": {"exact_match": 1.0, "format": 1.0}, "reward": 1.0}
        return {"gold": "New York", "completion": f"<answer>{words}</answer>", **paid}

    assert H.sign(changed(alias)).level is not Level.SUSPECT


def test_what_a_part_about_the_form_pays_is_not_taken_for_right():
    """Two parts that could both say right, of which one is always 0: their sum has two values."""

    def formed(parts):

        def change(row):
            paid = float(row["rollout"] % 2)
            return {
                "completion": "#### 7" if paid else "no answer",
                "gold": "5",
                "finish": "eos",
                "reward": paid,
                "parts": parts(paid),
            }

        return change

    both = changed(formed(lambda paid: {"right": 0.0, "one_answer": paid}))
    assert H.sign(both).level not in (Level.FAULT, Level.SUSPECT)
    assert H.sign(changed(formed(lambda paid: {}))).level is Level.SUSPECT


def bare(said, paid):
    """Eight prompts, four completions each that are nothing but their answer."""
    texts = [said(k) for k in range(32)]
    rewards = np.array([paid(k) for k in range(32)]).reshape(8, 4).tolist()
    gold = [str(k // 4) for k in range(32)]
    return trace_of(rewards, completion=texts, gold=gold, finish=["eos"] * 32)


test_levels_of_the_sign = levels_of(H.sign, {
    "right answers paid as wrong are suspected with examples": ("suspect",
        lambda: changed(misread)),
    "one batch is enough": ("suspect", lambda: changed(misread, steps=1)),
    "a perfect policy whose format varies is healthy": ("ok", lambda: changed(perfect)),
    "an answer marked in a way that is never paid is not held against the reward": ("ok",
        lambda: changed(boxed)),
    "other numbers that are paid as right": ("suspect", lambda: changed(lenient)),
    "a reward without parts is judged by its own two values": ("suspect",
        lambda: trace_of([[0.0] * 6 + [1.0, 0.0]] * 8,
            completion=[*["<answer>b</answer>"] * 3, *["<answer>a</answer>"] * 4, "no answer"] * 8,
            gold="a", finish="eos")),
    "pay that is wrong in both directions is left to h33": ("note",
        lambda: changed(lambda row: {"parts": {"exact_match": 1 - row["parts"]["exact_match"],
            "format": 1.0}})),
    "completions that are nothing but an answer are read as they are": ("ok",
        lambda: bare(lambda k: str(k // 4 if k % 2 else 99), lambda k: float(k % 2))),
    "completions that are nothing but an answer are read as they are (2)": ("ok",
        lambda: bare(lambda k: f"{(k // 4 if k % 2 else 99)} </s>", lambda k: float(k % 2))),
    "completions that are nothing but an answer are read as they are (3)": ("suspect",
        lambda: bare(lambda k: str(k // 4 if k % 2 else 99), lambda k: float(k % 4 == 3))),
    "completions that are nothing but an answer are read as they are (4)": ("unknown",
        lambda: bare(lambda k: "let me think about that question " * 3, lambda k: float(k % 2))),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "the probe faults gold that earns less than the maximum": ("fault",
        lambda: oracle(gold=(0.0, 1.0, 1.0), below=[case(0.0, 0.0)])),
    "the probe faults a corruption that beats gold": ("fault",
        lambda: oracle(above=[case(1.2, 1.0, "cite_all")])),
    "the probe suspects a corruption that equals gold": ("suspect",
        lambda: oracle(above=[case(1.0, 1.0, "empty")])),
    "the probe passes a sound reward and one with a factor for hops": ("ok", lambda: oracle()),
    "the probe passes a sound reward and one with a factor for hops (2)": ("ok",
        lambda: oracle(gold=(1.0, 1.5, 2.0, 1.0))),
})  # fmt: skip
