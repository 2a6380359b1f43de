"""Held-out scores in a log: which columns are such, and how they go."""

import numpy as np
import pytest

from flatline.hypotheses.held_out import course_of, is_score
from flatline.remarks import remarks_of
from tests.series.made import alike, around, line, log, said


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("eval/math_correct_rate", (0.3, 0.5), True),
        ("val-core/openai/gsm8k/acc/mean@1", (0.3, 0.5), True),
        ("eval/aime24", (0.2, 0.4), True),
        ("val/sequence_lengths_solved", (666, 535), False),
        ("val/sequence_lengths_unsolved", (666, 535), False),
        ("eval/num_solved", (666, 535), False),
        ("eval/solved", (666, 535), False),  # no share is 666
        ("eval/aime24-truncated_ratio", (0.2, 0.4), False),
        ("eval/aime24-response_len/mean", (5000,), False),
        ("eval/mathematicians", (700,), False),
    ],
)
def test_a_score_is_known_by_its_name_and_its_values(name, values, expected):
    assert is_score(name, np.array(values, dtype=float)) is expected


@pytest.mark.parametrize("near", [0.0, 0.3])
def test_noisy_evaluations_hardly_ever_rise_fall_or_end_below_their_start(near):
    courses = [
        course_of(0.5 + 0.05 * alike(14, near, np.random.default_rng(seed)), np.arange(14))
        for seed in range(300)
    ]
    assert sum(one.rises or one.falls for one in courses) <= 6, "2 %"
    assert sum(one.leans for one in courses) <= 15, "5 %"


def evaluated(values, every=10):
    score = np.full(len(values) * every, np.nan)
    score[every - 1 :: every] = values
    return log(reward=around(0.6, len(score)), eval__acc=score)


@pytest.mark.parametrize(("values", "told"), [
    (np.array([0.41, 0.58, 0.61, *[0.66] * 11]) + np.tile([0.01, -0.01], 7), "it rises"),
    ([0.3, 0.4, 0.45, 0.35, 0.4, 0.36], "0.36 at last and 0.45 at most (step 30) in 6 eval"),
])  # fmt: skip
def test_an_evaluation_is_told_with_its_course(values, told):
    assert told in said(evaluated(values))


def test_an_evaluation_is_told_once():
    told = remarks_of(evaluated(np.linspace(0.3, 0.8, 16)))
    assert sum("`eval/acc` is 0" in text for text in told) == 1


def test_evaluations_of_a_small_set_are_not_said_to_be_one_number():
    rounded = around(0.5, 20, 0.01).round(2)
    assert "exactly" not in said(log(reward=around(0.5, 20), eval__acc=rounded))
    same = np.where(np.arange(40) < 28, line(0.3, 0.5, 40, 0.01), 0.555)
    assert "exactly 0.555" in said(log(reward=around(0.5, 40), eval__acc=same))
