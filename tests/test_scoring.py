"""Scoring against values worked out by hand, and against hostile text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatline.tasks.scoring import (
    accepted_answers,
    after_thought,
    answer_variants,
    citation_f1,
    exact_match,
    format_fault,
    normalize_answer,
    parse_citations,
    precision,
    recall,
    tag_content,
    token_f1,
)

GOOD = "<think>why</think>\n<cite>1, 2</cite>\n<answer>Paris</answer>"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Church of England", "church of england"),
        ("``The Mother ''", "mother"),
        ("3.5", "35"),
        ("The", ""),
    ],
)
def test_answers_are_normalised_as_in_squad(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "f1"),
    [
        ("the Harold Knight!", ["Harold Knight"], 1, 1),
        ("Harold", ["Harold Knight"], 0, 2 / 3),  # precision 1, recall 1/2
        ("Laura Knight of Nottingham", ["Harold Knight"], 0, 1 / 3),  # 1/4 and 1/2
        ("Knight Harold", ["Harold Knight"], 0, 1),
        ("no no yes", ["no"], 0, 1 / 2),  # the second "no" has no partner: 1/3 and 1
        ("NO", ["Norway", "no"], 1, 1),
        ("Sweden", ["Norway", "no"], 0, 0),
        ("the", ["a"], 1, 1),  # both normalise to nothing
        ("the", ["Norway"], 0, 0),
        ("Norway", ["the"], 0, 0),
        ("anything", [], 0, 0),
        ("Rome - Italy", ["Paris - France"], 0, 0),  # a dash alone is no common word
    ],
)
def test_exact_match_and_f1_are_the_best_over_all_answers(prediction, answers, em, f1):
    assert exact_match(prediction, answers) == em
    assert token_f1(prediction, answers) == pytest.approx(f1)


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_between_0_and_1_and_full_where_exact_match_is(one, other):
    assert 0 <= token_f1(one, [other]) <= 1
    assert token_f1(one, [other]) == pytest.approx(token_f1(other, [one]))
    if exact_match(one, [other]):
        assert token_f1(one, [other]) == 1


def test_documents_are_scored_as_sets():
    assert recall([1, 1, 5], {1, 2}) == 0.5
    assert precision([1, 1, 5], {1, 2}) == 0.5
    assert precision([], {1}) == 0
    assert citation_f1([1, 2, 3, 4], {1, 2}) == pytest.approx(2 / 3)
    assert citation_f1([], {1, 2}) == 0


@pytest.mark.parametrize(
    ("text", "ids", "unreadable"),
    [
        ("1, 2,1", (1, 2), ()),
        ("[3]; #4\n5.", (3, 4, 5), ()),
        ("[3][4][14]", (3, 4, 14), ()),
        ('docs: {5}、**6** "7"', (5, 6, 7), ("docs",)),
        ("", (), ()),
        ("Document 7, -1", (7,), ("Document", "-1")),
        ("٣, ²", (), ("٣", "²")),
        ("9" * 5000, (), ("9" * 5000,)),
    ],
)
def test_citations_are_numbers_and_the_rest_is_reported(text, ids, unreadable):
    assert parse_citations(text) == (ids, unreadable)


def test_the_last_complete_tag_counts():
    text = "I will put it in <answer> tags. <answer>Rome</answer> or <answer> Paris </answer>."
    assert tag_content(text, "answer") == "Paris"
    assert tag_content("<answer>Paris", "answer") is None
    assert tag_content("</answer>Paris<answer>", "answer") is None
    assert tag_content("<answer></answer>", "answer") == ""


def test_what_was_only_thought_is_left_out():
    assert after_thought(" <think><answer>Rome</answer></think> so") == " so"
    assert after_thought("so <think>x</think>") == "so <think>x</think>"


def test_a_thought_that_the_prompt_opened_is_left_out_and_one_never_closed_leaves_nothing():
    assert after_thought("<answer>Rome</answer>?</think> so") == " so"
    assert after_thought("x</think> so <think>y</think>") == " so <think>y</think>"
    assert after_thought("\n<think>never closed <answer>Rome</answer>") == ""


@pytest.mark.parametrize("text", [GOOD, GOOD.replace("\n", ""), f"\n {GOOD}\n"])
def test_think_cite_answer_is_the_format(text):
    assert format_fault(text) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "exactly once"),
        (GOOD + GOOD, "exactly once"),
        (GOOD.replace("</cite>", ""), "exactly once"),
        ("Well. " + GOOD, "outside the tags"),
        (GOOD + ".", "outside the tags"),
        ("<cite>1</cite><think>w</think><answer>x</answer>", "in the order think, cite, answer"),
        ("<think><cite>1</cite></think><answer>x</answer>", "in the order think, cite, answer"),
    ],
)
def test_anything_else_is_not(text, fault):
    assert fault in (format_fault(text) or "")


@pytest.mark.parametrize(
    ("answer", "variant"),
    [
        ("3", "three"),
        ("35", "thirty-five"),
        ("2 million", "two million"),
        ("3rd", "third"),
        ("21st century", "twenty-first century"),
        ("as early as the 3rd century BC", "as early as the third century BC"),
        ("dancer``All the Way ''Mae", "dancer All the Way Mae"),
        ("``Lucky Penny''", "“Lucky Penny”"),
    ],
)
def test_other_spellings_of_an_answer_are_accepted(answer, variant):
    assert exact_match(variant, accepted_answers(answer))


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ("1213–1288", "1213-1288"),
        ("1213-1288", "1213—1288"),
        ("Conan O'Brien", "conan o’brien"),
        ("Rock 'n' Roll–Band", "Rock ’n’ Roll-Band"),
        ("−5", "-5"),
        ("Beyonce\u0301", "Beyoncé"),
    ],
)
def test_dashes_apostrophes_and_accents_are_one_however_they_are_written(answer, written):
    accepted = accepted_answers(answer)
    assert exact_match(written, accepted) == token_f1(written, accepted) == 1


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("2–1", "21"),
        ("−5", "5"),
        ("3", "third"),
        ("3rd", "three"),
        ("1,400", "one,400"),
        ("twenty one", "20 1"),
        ("nineteen ninety", "19 90"),
        ("1991", "ninety-one"),
        ("``Lucky Penny'' and more", "“Lucky Penny”"),
        ("second base", "2 base"),
    ],
)
def test_a_variant_never_lets_in_another_answer(answer, wrong):
    assert not exact_match(wrong, accepted_answers(answer))


def test_every_number_under_100_survives_the_way_to_words_and_back():
    for number in range(100):
        for word in answer_variants(str(number)):
            assert [v for v in answer_variants(word) if v.isdigit()] == [str(number)]


@given(st.text(max_size=60))
def test_variants_exist_for_any_text_and_the_answer_comes_first(text):
    assert accepted_answers(text)[0] == text


@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 125_000,
        "\u0301\u0327" * 500_000,
        "a " * 500_000,
    ],
)
def test_a_megabyte_of_hostile_text_is_read_in_well_under_a_second(text):
    start = time.process_time()
    tag_content(text, "answer")
    format_fault(text)
    token_f1(text, ["Paris"])
    parse_citations(text)
    assert time.process_time() - start < 1
