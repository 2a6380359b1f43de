"""`each` fails where one of its cases fails, and names it."""

import pytest

from tests.each import each


@each("letter", "abc")
@each("number", [1, 2, 3], ids=["one", "two", "three"])
def pairs(letter, number, seen):
    seen.append((letter, number))
    assert (letter, number) != ("b", 2), "not these"


def test_every_case_is_tried_and_those_that_fail_are_named():
    seen = []
    with pytest.raises(AssertionError, match=r"b: AssertionError: two: AssertionError: not these"):
        pairs(seen=seen)
    assert len(seen) == 9


def test_what_is_left_of_the_parameters_are_fixtures():
    from inspect import signature

    assert list(signature(pairs).parameters) == ["seen"]
