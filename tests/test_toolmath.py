"""Toolmath: the calculator, the generator and the scoring."""

import hashlib
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatline.errors import DataError
from flatline.tasks.arithmetic import MAX_SIZE, ExpressionError, evaluate, show
from flatline.tasks.base import BadToolCall, ToolCall
from flatline.tasks.toolmath import HIGHEST, SIZES, ToolMath, rows

ROW = {
    "question": "a = 47 * 8; b = a - 129; c = b + 36. What is c?",
    "answer": "283",
    "steps": [
        {"expression": "47 * 8", "value": 376},
        {"expression": "376 - 129", "value": 247},
        {"expression": "247 + 36", "value": 283},
    ],
}
QUESTION = re.compile(r"a = \d+ [-+*] \d+(; [bcd] = [abc] [-+*] (\d+|[ab]))+\. What is [bcd]\?")


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


# -- the calculator ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("47 * 8", 376),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("10-3-4", 3),
        ("100/10/5", 2),
        ("-3 - -4", 1),
        ("2*-3", -6),
        ("--5", 5),
        ("-(1+2)", -3),
        (" 1.5 * .5 ", Fraction(3, 4)),
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
        " ",
        "9**9**9",
        "__import__('os').system('true')",
        "1e999",
        "0x10",
        "a + 1",
        "1,000",
        "2(3)",
        "1 2",
        "(1",
        "1)",
        "()",
        "1 +",
        "* 2",
        "1/0",
        "1/(2-2)",
        "1..2",
        "+5",
        "\x00",
        "٣",
        "9" * 300,
        "9" * 100,
        "0." + "0" * 100 + "1",
        "(" * 1_000_000 + "1" + ")" * 1_000_000,
        "(" * 90 + "1" + ")" * 90,
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


@st.composite
def _expressions(draw, depth=0):
    """An expression and its value by Fraction arithmetic."""
    if depth > 3 or draw(st.booleans()):
        number = draw(st.integers(0, 99))
        return str(number), Fraction(number)
    kind = draw(st.sampled_from(["+", "-", "*", "/", "minus"]))
    left, x = draw(_expressions(depth + 1))
    if kind == "minus":
        return f"-({left})", -x
    right, y = draw(_expressions(depth + 1))
    if kind == "/" and y == 0:
        kind = "+"
    value = {"+": x + y, "-": x - y, "*": x * y}[kind] if kind != "/" else x / y
    return f"({left}){kind}({right})", value


@given(_expressions())
def test_every_expression_agrees_with_fraction_arithmetic(pair):
    text, value = pair
    try:
        assert evaluate(text) == value
    except ExpressionError as error:
        assert len(text) > 200 or "larger or finer" in str(error)


@given(st.lists(st.sampled_from(["7", "12", "3.5"]), min_size=2, max_size=12), st.data())
def test_precedence_and_order_agree_with_python_on_flat_chains(numbers, data):
    signs = [data.draw(st.sampled_from("+-*/")) for _ in numbers[1:]]
    text = numbers[0] + "".join(s + n for s, n in zip(signs, numbers[1:], strict=True))
    # Our own text of digits and signs, with every number made a Fraction: safe and exact.
    wrapped = re.sub(r"[0-9.]+", lambda m: f"Fraction('{m[0]}')", text)
    expected = eval(wrapped, {"Fraction": Fraction})
    try:
        assert evaluate(text) == expected
    except ExpressionError as error:
        assert "larger or finer" in str(error)


@given(st.text(max_size=250))
def test_no_text_breaks_the_calculator(text):
    try:
        value = evaluate(text)
    except ExpressionError:
        return
    assert abs(value) <= MAX_SIZE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(376), "376"),
        (Fraction(-3, 4), "-0.75"),
        (Fraction(1, 8), "0.125"),
        (Fraction(7, 3), "7/3"),
        (Fraction(201, 2), "100.5"),
    ],
)
def test_results_are_shown_plainly_and_exactly(value, text):
    assert show(value) == text
    assert Fraction(text) == value


# -- the generator ----------------------------------------------------------------------------


def test_every_built_in_problem_has_the_promised_form():
    for row in rows("train", 0, 500):
        assert QUESTION.fullmatch(row["question"])
        assert 2 <= len(row["steps"]) <= 4
        assert row["answer"] == str(row["steps"][-1]["value"])
        for step in row["steps"]:
            assert evaluate(step["expression"]) == step["value"]
            assert 0 <= step["value"] <= HIGHEST


def test_the_text_of_a_problem_leads_to_its_answer():
    for row in rows("validation", 0, 100):
        names: dict[str, Fraction] = {}
        chain, _, _ = row["question"].partition(".")
        for line in chain.split("; "):
            name, expression = line.split(" = ")
            names[name] = evaluate(
                re.sub("[abcd]", lambda m, seen=names: str(seen[m[0]]), expression)
            )
        assert str(names[name]) == row["answer"]


def test_no_two_splits_share_a_problem():
    seen = {
        split: {row["question"] for row in rows(split, 0, size)} for split, size in SIZES.items()
    }
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_a_row_depends_on_its_split_and_index_alone():
    assert rows("train", 40, 42) == rows("train", 0, 60)[40:42]


def test_the_same_rows_are_made_forever():
    made = json.dumps(rows("train", 0, 200) + rows("test", 0, 50)).encode()
    assert hashlib.sha256(made).hexdigest()[:16] == "1f25ae6b1aa30914"


# -- the scoring ------------------------------------------------------------------------------


def test_gold_earns_everything_and_sees_the_plain_results(tmp_path):
    problem = load(tmp_path)
    got, told, events = play(problem, ["47 * 8", "376-129", "247+36"], "<answer>283</answer>")
    assert told == ["376", "247", "283"]
    assert got.reward == 1.0
    assert got.notes == ()
    assert events["tool_calls"] == 3
    assert problem.hops == 3


def test_progress_is_the_share_of_steps_a_tool_brought_back(tmp_path):
    got, _, _ = play(load(tmp_path), ["47 * 8", "1 + 1"], "<answer>283</answer>")
    assert got.parts == {"exact_match": 1.0, "progress": pytest.approx(1 / 3), "format": 1.0}


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
        ("<answer>$283</answer>", 1, 0),
        ("<answer>283</answer><answer>284</answer>", 0, 0),
        ("<answer>284</answer>", 0, 1),
        ("<answer>many</answer>", 0, 0),
        ("<answer>283", 0, 0),
        ("<think><answer>283</answer>", 0, 0),
        ("283?</think><answer>283</answer>", 1, 1),
        ("283", 0, 0),
        ("", 0, 0),
    ],
)
def test_the_answer_tag_decides(tmp_path, final, exact, form):
    got, _, events = play(load(tmp_path), [], final)
    assert (got.parts["exact_match"], got.parts["format"]) == (exact, form)
    assert bool(got.notes) == (not form)
    assert events["malformed_answers"] == (not exact and not form)


def test_a_bad_expression_is_an_observation_and_a_counted_error(tmp_path):
    _, told, events = play(load(tmp_path), ["9**9", "1/0"], None)
    assert told == ["Error: a number is missing before '*'.", "Error: division by zero."]
    assert events["tool_errors"] == 2


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
        ({"question": ""}, "`question` is empty"),
        ({"answer": "many"}, "is not a number"),
        ({"answer": "284"}, "the last step gives 283"),
        ({"steps": []}, "`steps` is missing or empty"),
        ({"steps": ["47 * 8"]}, "step 0 is '47 * 8'"),
        ({"steps": [{"expression": "1 +", "value": 1}]}, "a number is missing"),
        ({"steps": [{"expression": "1 + 1", "value": 3}]}, "says 1 + 1 is 3, but it is 2"),
    ],
)
def test_a_bad_row_is_refused_with_its_file_and_line(tmp_path, change, words):
    with pytest.raises(DataError) as error:
        load(tmp_path, ROW | change)
    assert "rows.jsonl:1" in str(error.value)
    assert words in str(error.value)


def test_long_hostile_text_is_scored_at_once(tmp_path):
    problem = load(tmp_path)
    for text in ("<answer>" * 50_000, "<think>" * 50_000, "<answer>" + "9" * 500_000 + "</answer>"):
        play(problem, [], text)


def test_gold_is_the_maximum_and_every_corruption_is_lower():
    check = pytest.importorskip("flatline.tasks.check").check
    task = ToolMath()
    report = check(task, task.load("lab,,test[:200]", split="test")).to_json()
    assert (report["problems"], report["violations"]) == (200, [])
