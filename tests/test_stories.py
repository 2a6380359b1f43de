"""Stories: GSM8K-shaped word problems with invented names."""

import re

import pytest

from flatline.errors import DataError
from flatline.tasks import stories

ROWS = stories.rows("train", 0, 300)


def test_the_same_seed_gives_the_same_bytes():
    assert stories.rows("train", 0, 300) == ROWS
    assert stories.rows("train", 0, 3, seed=1) != ROWS[:3]


def test_every_step_is_right_and_the_last_one_is_the_answer():
    for row in ROWS:
        *lines, final = row["answer"].split("\n")
        assert 2 <= len(lines) <= 5
        for line in lines:
            left, inner, result = re.fullmatch(r"(.+) = <<(.+)=(\d+)>>\3", line).groups()
            assert left == inner
            assert stories.value(left) == int(result)
        assert final == f"#### {result}"


def test_every_number_of_a_story_is_between_1_and_99():
    for row in ROWS:
        numbers = [int(n) for n in re.findall(r"\d+", row["question"] + row["answer"])]
        assert 1 <= min(numbers) <= max(numbers) <= stories.HIGHEST


def test_no_two_problems_of_a_split_are_the_same():
    assert len({row["question"] for row in ROWS}) == len(ROWS)


def test_an_unknown_split_is_named_with_what_exists():
    with pytest.raises(DataError, match="no split 'dev'"):
        stories.rows("dev", 0, 1)
