"""A reward that is one number from first to last never rises, never falls and is no healthy run:
that nothing differs in it is what is said. What changes without noise still changes."""

import json
import re

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.course import goes_on, slope, stretches
from flatline.hypotheses.h47_seed_noise import _beside_a_jump
from flatline.hypotheses.levels import Course
from flatline.hypotheses.trend import too_short, trend_of
from flatline.remarks.shape import Noise, Shape, typical
from flatline.stats import is_constant
from flatline.trace import Trace
from tests.traces import rollout_rows, run_facts

CONSTANTS = (0.0, 1.0, -1.0, 0.9, 1 / 3, 0.1 + 0.2, 1e-9, 1e9)
LENGTHS = (7, 20, 31, 40, 64, 137)
MOVES = re.compile(r"reward[^.;:]{0,25} (rises|falls|jumps|goes|moves)|looks healthy")


def exact(value, rows):
    return np.full(rows, value)


def rounded_means(value, rows):
    """Means of more and more equal numbers."""
    return np.array([np.full(at + 1, value).mean() for at in range(rows)])


def in_float32(value, rows):
    """Means of float32, each off by a rounding or none."""
    off = np.random.default_rng(0).integers(-1, 2, rows)
    return (value * (1 + 2**-24 * off)).astype(np.float32).astype(float)


def another_rounding_later(value, rows):
    return np.where(np.arange(rows) < rows // 2, value, value * (1 + 4e-16))


def with_a_gap(value, rows):
    return np.where(np.arange(rows) == rows // 2, np.nan, value)


FORMS = (exact, rounded_means, in_float32, another_rounding_later, with_a_gap)


def as_log(path, reward, beside):
    rows = (
        {"step": at, **({} if np.isnan(value) else {"reward": float(value)}), **beside(at)}
        for at, value in enumerate(reward, start=1)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


BESIDE = (
    lambda at: {},
    lambda at: {"reward_std": 0.0, "loss": 0.01},
    lambda at: {"kl": 1e-3 * at, "learning_rate": 1e-6 if at < 20 else 2e-6},
)


def each_way(*ways):
    """Every constant, each with one of every kind of way; all of these are met."""
    return [(value, *(kind[at % len(kind)] for kind in ways)) for at, value in enumerate(CONSTANTS)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_no_log_of_a_constant_reward_moves_or_is_healthy(tmp_path, form):
    for value, rows, beside in each_way(LENGTHS, BESIDE):
        report = diagnose(as_log(tmp_path / "log.jsonl", form(value, rows), beside))
        told = report.to_json()
        words = " ".join([told["headline"], told["summary"], *told["remarks"]])
        assert told["outcome"] in ("unexplained", "alarm"), (value, rows, words)
        assert not MOVES.search(words), (value, rows, words)
        assert report.trend.constant and not (report.trend.rises or report.trend.falls)
        assert "the same" in words, (value, rows, words)


def test_no_recorded_run_of_a_constant_reward_moves_or_is_healthy():
    for value, steps in each_way((6, 20, 31, 64)):
        report = diagnose(recorded(np.full((steps, 3, 8), value)))
        told = report.to_json()
        assert told["outcome"] in ("unexplained", "alarm")
        assert report.trend.constant and not (report.trend.rises or report.trend.falls)
        assert not MOVES.search(told["headline"] + told["summary"])
        assert f"in all {24 * steps} rollouts" in report.trend.text


def recorded(reward_SPG):
    rows = [
        row
        for step, reward_PG in enumerate(reward_SPG.tolist(), start=1)
        for row in rollout_rows(reward_PG, step=step)
    ]
    return Trace.from_rows(run=run_facts(), rollouts=rows)


def test_groups_of_one_mean_whose_rewards_differ_are_not_said_to_be_alike():
    half = np.tile([0.0, 1.0], (20, 3, 4))
    trend = trend_of(recorded(half))
    assert trend.constant and "differ inside groups" in trend.text


def test_a_log_that_has_a_spread_beside_a_constant_reward_is_not_said_to_have_none(tmp_path):
    log = as_log(tmp_path / "log.jsonl", np.zeros(40), lambda at: {"reward_std": 0.4})
    assert "rewards differ" in diagnose(log).trend.text
    log = as_log(tmp_path / "log.jsonl", np.zeros(40), lambda at: {"reward_std": 0.0})
    assert "nothing can be learnt" in diagnose(log).trend.text


def test_of_too_few_steps_it_is_said_that_all_are_the_same():
    steps = [{"step": at, "reward": 0.9} for at in range(1, 5)]
    assert "exactly the same, 0.9," in too_short(Trace.from_rows(steps=steps))


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda form: form.__name__)
def test_rounding_is_no_change_wherever_noise_is_measured_between_neighbours(form):
    step = np.arange(64.0)
    for value in CONSTANTS:
        values = form(value, 64)
        course = Course(values, step)
        assert is_constant(values)
        assert len(stretches(values)) == 1
        assert not goes_on(values, values[32:])
        steep, off = slope(values)
        assert abs(steep) <= off
        assert not (course.jumps if form is exact else {}) and not course.turns
        assert not (course.differs or course.certainly_differs or course.certainly_turns)
        shape = Shape(values, step, Noise(1))
        assert shape.constant and not shape.moves and not shape.levels and shape.cuts == [0]
        assert typical(np.full(64, value)) == value
        log = Trace.from_rows(steps=[{"step": at, "reward": v} for at, v in enumerate(values, 1)])
        assert _beside_a_jump(log)[0] == ""


@pytest.mark.parametrize("values", [(0.0, 1.0), (1.0, 0.0), (0.3, 0.30003), (1e9, 1.001e9)])
def test_a_step_without_any_noise_is_still_a_change(values):
    before, after = values
    curve = np.repeat(values, 20)
    assert [part.mean for part in stretches(curve)] == pytest.approx(values)
    assert Shape(curve, np.arange(40.0), Noise(1)).levels == [0, 20]
    trend = trend_of(
        Trace.from_rows(steps=[{"step": at + 1, "reward": v} for at, v in enumerate(curve)])
    )
    assert not trend.constant
    if abs(after - before) > 0.05:
        assert (trend.rises, trend.falls) == (after > before, after < before)


def test_levels_that_differ_by_rounding_are_one():
    curve = np.repeat([0.3, 0.1 + 0.2, 0.8], 10)
    assert Shape(curve, np.arange(30.0), Noise(1)).levels == [0, 20]
    assert [part.first for part in stretches(curve)] == [0, 20]
