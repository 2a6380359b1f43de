"""Toolmath: the calculator, the generator and the scoring."""

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import pytest

from flatline.errors import DataError
from flatline.tasks.arithmetic import ExpressionError, evaluate, show
from flatline.tasks.base import BadToolCall, ToolCall
from flatline.tasks.toolmath import SIZES, ToolMath, rows

ROW = {
    "question": "a = 47 * 8; b = a - 129; c = b + 36. What is c?",
    "answer": "283",
    "steps": [
        {"expression": "47 * 8", "value": 376},
        {"expression": "376 - 129", "value": 247},
        {"expression": "247 + 36", "value": 283},
    ],
}


def load(tmp_path: Path, row: object = ROW):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return ToolMath().load(str(path), split="train")[0]


def play(problem, calls, final):
    episode = ToolMath().episode(problem)
    told = [episode.observe(call(c) if isinstance(c, str) else c).text for c in calls]
    return episode.score(final), told, episode.events


def call(expression) -> ToolCall:
    return ToolCall(name="calculate", arguments={"expression": expression})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("47 * 8", 376),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("100/10/5", 2),
        ("-(1+2)", -3),
        ("0.1+0.2", Fraction(3, 10)),
        ("6 × 7 ÷ 2 − 1", 20),
    ],
)
def test_expressions_have_their_usual_value(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "9**9**9",
        "__import__('os').system('true')",
        "1e999",
        "a + 1",
        "1,000",
        "1 2",
        "1 +",
        "1/0",
        "+5",
        "\x00",
        "٣",
        "9" * 300,
        "0." + "0" * 100 + "1",
        "(" * 1_000_000 + "1" + ")" * 1_000_000,
        "-" * 150 + "1",
        "999999999 * 999999999",
        "9*" * 99 + "9",
    ],
)
def test_hostile_expressions_are_refused_with_words(expression):
    with pytest.raises(ExpressionError) as error:
        evaluate(expression)
    assert str(error.value).endswith((".", "5."))
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(-3, 4), "-0.75"),
        (Fraction(1, 8), "0.125"),
        (Fraction(7, 3), "7/3"),
    ],
)
def test_results_are_shown_plainly_and_exactly(value, text):
    assert show(value) == text
    assert Fraction(text) == value


def test_no_two_splits_share_a_problem():
    seen = {
        split: {row["question"] for row in rows(split, 0, size)} for split, size in SIZES.items()
    }
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_the_same_rows_are_made_forever():
    made = json.dumps(rows("train", 0, 200) + rows("test", 0, 50)).encode()
    assert hashlib.sha256(made).hexdigest()[:16] == "1f25ae6b1aa30914"


def test_gold_earns_everything_and_sees_the_plain_results(tmp_path):
    problem = load(tmp_path)
    got, told, events = play(problem, ["47 * 8", "376-129", "247+36"], "<answer>283</answer>")
    assert told == ["376", "247", "283"]
    assert got.reward == 1.0
    assert got.notes == ()
    assert events["tool_calls"] == 3
    assert problem.hops == 3


def test_a_value_two_steps_share_must_be_brought_back_twice(tmp_path):
    steps = [{"expression": "10 + 10", "value": 20}, {"expression": "2 * 10", "value": 20}]
    problem = load(tmp_path, {"question": "q", "answer": "20", "steps": steps})
    assert play(problem, ["10+10"], "x")[0].parts["progress"] == 0.5
    assert play(problem, ["10+10", "2*10"], "x")[0].parts["progress"] == 1.0


@pytest.mark.parametrize(
    ("final", "exact", "form"),
    [
        ("<answer>283</answer>", 1, 1),
        ("<think>so</think>\n<answer> 283 </answer>\n", 1, 1),
        ("<think><answer>1</answer></think><answer>283.0</answer>", 1, 1),
        ("It is <answer>283</answer>", 1, 0),
        ("<answer>283</answer><answer>283</answer>", 1, 0),
        ("<answer>283</answer><answer>284</answer>", 0, 0),
        ("<answer>284</answer>", 0, 1),
        ("<think><answer>283</answer>", 0, 0),
        ("283", 0, 0),
    ],
)
def test_the_answer_tag_decides(tmp_path, final, exact, form):
    got, _, events = play(load(tmp_path), [], final)
    assert (got.parts["exact_match"], got.parts["format"]) == (exact, form)
    assert bool(got.notes) == (not form)
    assert events["malformed_answers"] == (not exact and not form)


def test_wrong_calls_are_observations_and_counted(tmp_path):
    calls = [
        call(5),
        ToolCall(name="calc", arguments={}),
        ToolCall(name="calculate", arguments={}),
        BadToolCall(text="{", reason="not JSON."),
    ]
    got, told, events = play(load(tmp_path), calls, "<answer>283</answer>")
    assert all(text.startswith("Error: ") for text in told)
    assert (events["tool_errors"], events["malformed_calls"]) == (3, 1)
    assert got.parts["format"] == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answer": "284"}, "the last step gives 283"),
        ({"steps": []}, "`steps` is missing or empty"),
        ({"steps": [{"expression": "1 +", "value": 1}]}, "a number is missing"),
        ({"steps": [{"expression": "1 + 1", "value": 3}]}, "says 1 + 1 is 3, but it is 2"),
    ],
)
def test_a_bad_row_is_refused_with_its_file_and_line(tmp_path, change, words):
    with pytest.raises(DataError) as error:
        load(tmp_path, ROW | change)
    assert "rows.jsonl:1" in str(error.value)
    assert words in str(error.value)


def test_gold_is_the_maximum_and_every_corruption_is_lower():
    check = pytest.importorskip("flatline.tasks.check").check
    task = ToolMath()
    report = check(task, task.load("lab,,test[:200]", split="test")).to_json()
    assert (report["problems"], report["violations"]) == (200, [])
