"""GSM8K: numbers, marks, rows, and a gold script that is the maximum."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from flatline.errors import DataError
from flatline.tasks.base import ToolCall
from flatline.tasks.gsm8k import GSM8K
from flatline.tasks.numbers import parse_number

REAL = Path(__file__).parents[2] / "shared" / "data" / "gsm8k"
ROW = {"question": "How many?", "answer": "2+1=<<2+1=3>>3\n3*24=<<3*24=72>>72\n#### 72"}


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def problem(tmp_path: Path, row: object = ROW):
    return GSM8K().load(write(tmp_path / "rows.jsonl", row), split="train")[0]


def score(problem, final):
    episode = GSM8K().episode(problem)
    return episode.score(final), episode.events


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", "72"),
        ("$1,080.50", "1080.5"),
        ("-$5", "-5"),
        ("−3", "-3"),
        ("5%", "5"),
        (".5", "0.5"),
    ],
)
def test_one_number_is_read_in_all_its_spellings(text, number):
    assert parse_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "1/2", "1e5", "1,00", "72 dollars", "--5", "$", "٣", "nan"])
def test_what_is_no_plain_number_is_not_read(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("final", "exact", "form"),
    [
        ("so it is\n#### 72", 1, 1),
        ("#### **72**", 1, 0),
        ("#### 72\nThat is it.", 1, 0),
        ("#### 72\n#### 72", 1, 0),
        ("#### 71", 0, 1),
        ("#### 71\n#### 72", 0, 0),
        ("#### 72 1/2", 0, 0),
        ("#### 72 or 73", 0, 0),
        ("#### 72 - 3 = 69", 0, 0),
        ("#### 72 m²", 1, 0),
        ("#### 1. First\n2 + 1\n#### **2. Then**\n#### 72", 1, 0),
        ("72", 0, 0),
    ],
)
def test_the_number_after_the_mark_decides(tmp_path, final, exact, form):
    got, _ = score(problem(tmp_path), final)
    assert (got.parts["exact_match"], got.parts["format"]) == (exact, form)


def test_a_number_that_was_only_thought_is_no_answer(tmp_path):
    one = problem(tmp_path)
    assert score(one, "<think>#### 71</think>\n#### 72")[0].parts == {"exact_match": 1, "format": 1}
    assert score(one, "#### 71?</think>\n#### 72")[0].parts == {"exact_match": 1, "format": 1}
    assert score(one, "<think>maybe\n#### 72")[0].parts == {"exact_match": 0, "format": 0}


def test_a_tool_call_is_answered_with_an_error_and_costs_the_format(tmp_path):
    episode = GSM8K().episode(problem(tmp_path))
    told = episode.observe(ToolCall(name="calculate", arguments={"expression": "1"}))
    assert "no tool 'calculate'" in told.text
    assert episode.score("#### 72").parts == {"exact_match": 1.0, "format": 0.0}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "q"}, "`answer` is missing"),
        ({"question": 3, "answer": "#### 1"}, "`question` is not text but 3"),
        ({"question": "q", "answer": "#### many"}, "'many' after `####` is not a number"),
    ],
)
def test_a_bad_row_is_refused_with_its_file_and_line(tmp_path, row, words):
    spec = write(tmp_path / "rows.jsonl", ROW, row)
    with pytest.raises(DataError) as error:
        GSM8K().load(spec, split="train")
    assert "rows.jsonl:2" in str(error.value)
    assert words in str(error.value)


def test_gold_is_the_maximum_on_the_built_in_stories():
    check = pytest.importorskip("flatline.tasks.check").check
    task = GSM8K()
    assert check(task, task.load("lab,main,test[:200]", split="test")).to_json()["violations"] == []


@pytest.mark.skipif(not REAL.is_dir(), reason="the real GSM8K files are not here")
def test_gold_is_the_maximum_on_every_real_test_problem():
    check = pytest.importorskip("flatline.tasks.check").check
    task = GSM8K()
    report = check(task, task.load(str(REAL / "test.jsonl"), split="test")).to_json()
    assert (report["problems"], report["violations"]) == (1319, [])


def test_long_hostile_text_is_scored_at_once(tmp_path):
    for text in ("#### " * 50_000, "#### 1" + "0" * 500_000, "#### 1" + " " * 500_000 + "x"):
        score(problem(tmp_path), text)
