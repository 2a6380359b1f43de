"""Nothing but the answer is exchanged, and the right one must earn more."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from flatline.live.trl.departure.data import Heard
from flatline.live.trl.departure.exchanged import judge_exchanged
from flatline.spec import Asked

GOLD = [str(10 * k + 7) for k in range(16)]
DATA = Dataset.from_dict({"prompt": [f"question {k}" for k in range(16)], "answer": GOLD})
ASKED = Asked(group=4, rows_in_pass=8, longest=64, reward_weights=(1.0, 0.2))
SAID = [f"so it is\n#### {GOLD[1 + k // 4] if k % 4 < 2 else 55}" for k in range(8)]


def number_in(text):
    return text.rpartition("####")[2].strip()


def correct(completions, answer, **kwargs):
    pairs = zip(completions, answer, strict=True)
    return [float(number_in(said) == gold) for said, gold in pairs]


def long(completions, **kwargs):
    return [len(said) / 100 for said in completions]


def found(*functions, said=SAID, data=DATA):
    """What is said of these functions, on eight completions of two rows."""
    rows = [data[1 + k // 4] for k in range(8)]
    given = {name: [row[name] for row in rows] for name in data.column_names}
    given = {**given, "prompts": given.pop("prompt"), "completions": list(said)}
    calls = {at: (given, one(**given)) for at, one in enumerate(functions)}
    trainer = SimpleNamespace(
        reward_funcs=list(functions),
        reward_func_names=[one.__name__ for one in functions],
        train_dataset=data,
        num_generations=4,
    )
    return judge_exchanged(trainer, ASKED, Heard(calls=calls))


def inverted(completions, answer, **kwargs):
    return [1 - paid for paid in correct(completions, answer)]


def where_a_number_is_said(otherwise, paid=lambda p: p):
    def function(completions, answer, **kwargs):
        both = zip(completions, correct(completions, answer), strict=True)
        return [paid(p) if number_in(said).isdigit() else otherwise for said, p in both]

    return function


def picky(completions, answer, **kwargs):
    """Cannot judge an empty completion."""
    assert all("####" in said for said in completions)
    return correct(completions, answer)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (correct, None),
        (inverted, "less than a wrong one in 15 of 15 rows"),
        (where_a_number_is_said(1.0), "hardly more than an empty completion in 15 of 15 rows"),
        (where_a_number_is_said(0.0, lambda p: 2 * p - 1), None),  # somebody may punish them more
        (picky, None),
        (long, None),
    ],
)
def test_a_reward_that_pays_for_anything_but_gold_is_suspected(function, told):
    said = found(function, long)
    assert said is None if told is None else said.stage == "rewards" and told in said.text


def test_a_reward_that_can_never_match_its_gold_is_suspected_where_the_batch_says_gold():
    def never(completions, answer, **kwargs):
        return [float(f"<{said}>" == gold) for said, gold in zip(completions, answer, strict=True)]

    assert "4 completions of the batch give the gold of their own row" in found(never, long).text
    wrong = ["so it is\n#### 55"] * 8
    assert found(never, long, said=wrong) is None, "a format that nobody has seen may be asked for"


def test_an_answer_that_counts_in_one_message_must_count_after_tools():
    def messages(text):
        return [
            {"role": "assistant", "content": ""},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": text},
        ]

    def first(completions, answer, **kwargs):
        return correct([said[0]["content"] for said in completions], answer)

    def last(completions, answer, **kwargs):
        return correct([said[-1]["content"] for said in completions], answer)

    said = [messages(text) for text in SAID]
    assert "not as the last of 3 messages" in found(first, said=said).text
    assert found(last, said=said) is None


def test_without_gold_nothing_is_told():
    assert found(long, data=DATA.rename_column("answer", "level")) is None


def test_a_judge_whose_verdict_hangs_on_the_answer_alone_is_suspected():
    kept = {}

    def remembered(completions, answer, **kwargs):
        for said, gold in zip(completions, answer, strict=True):
            kept.setdefault(number_in(said), float(number_in(said) == gold))
        return [kept[number_in(said)] for said in completions]

    told = found(remembered, long)
    assert told.departs and "`remembered`" in told.text


def test_two_rows_that_happen_to_have_the_same_gold_are_no_proof():
    same = Dataset.from_dict({"prompt": [f"q {k}" for k in range(16)], "answer": ["7"] * 16})
    assert found(correct, long, data=same) is None
