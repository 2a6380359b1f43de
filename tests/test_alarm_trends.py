"""What is told of curves: certain at every look together, and only where it matters."""

import numpy as np
import pytest

from flatline.alarms import lookout
from flatline.alarms.lookout import Lookout
from flatline.alarms.sequential import Falling
from flatline.alarms.trends import CURVES, Trends, Watched
from flatline.hypotheses.base import Hypothesis, Level
from flatline.trace import Trace


def rng(seed=0):
    return np.random.default_rng(seed)


def odds(values):
    test = Falling()
    return max(test.odds for value in values if test.add(float(value)) is None)


def reward(values):
    watched = Watched(CURVES[0])
    found = [watched.add(step, np.atleast_1d(value)) for step, value in enumerate(values, 1)]
    return [alarm for alarm in found if alarm]


def trace_of(**columns):
    rows = zip(*columns.values(), strict=True)
    steps = [
        {"step": i, **dict(zip(columns, map(float, row), strict=True))}
        for i, row in enumerate(rows, 1)
    ]
    return Trace.from_rows(steps=steps)


# -- the test


def test_a_series_of_noise_seldom_wins_a_bet_however_often_one_looks():
    won = [odds(rng(seed).standard_normal(60)) >= 20 for seed in range(150)]
    assert np.mean(won) <= 0.05


@pytest.mark.parametrize(("values", "most"), [
    ([0.0] * 100, 100),
    ((rng(3).random(200) < 0.2).astype(float), 100),
    (np.arange(100) + rng().standard_normal(100), 20),
])  # fmt: skip
def test_equal_values_and_a_series_that_rises_win_no_bet(values, most):
    assert odds(values) < most


@pytest.mark.parametrize("values", [
    [*rng(1).normal(0, 1, 20), *rng(2).normal(-4, 1, 10)],
    [*(np.linspace(0, 5, 80) + rng(1).normal(0, 1, 80)), *rng(2).normal(1, 1, 60)],
    rng(1).standard_normal(800) - np.linspace(0, 2, 800),
])  # fmt: skip
def test_a_fall_is_certain_within_ten_values_after_a_rise_or_slowly_in_the_end(values):
    assert odds(values) > 250


def test_bets_do_not_pile_up_in_a_long_run():
    test = Falling()
    for value in rng().standard_normal(1500):
        test.add(float(value))
    assert len(test._log_won) < 2000
    assert len(test._latest) < 700


# -- the curves


def test_a_reward_that_falls_is_told_once_with_its_numbers():
    found = reward([*rng(1).normal(0.6, 0.03, 20), *rng(5).normal(0.1, 0.03, 20)])
    assert [one.name for one in found] == ["reward-falls"]
    assert found[0].level == "trend"
    assert "0.601 before step 21" in found[0].text
    assert 22 <= found[0].step <= 32


def test_groups_of_a_step_tell_it_sooner():
    early, late = rng(1).normal(0.6, 0.2, (6, 8)), rng(2).normal(0.2, 0.2, (6, 8))
    found = reward([*early, *late])
    assert found
    assert found[0].step <= 10


def test_a_fall_too_small_to_matter_is_not_told():
    assert not reward([*rng(1).normal(0.6, 0.001, 40), *rng(2).normal(0.59, 0.001, 40)])


def test_a_smoothed_log_of_noise_is_not_said_to_fall():
    told = 0
    for seed in range(40):
        values = [0.5]
        for raw in rng(seed).normal(0.5, 0.3, 80):
            values.append(0.9 * values[-1] + 0.1 * raw)
        told += bool(reward(values))
    assert told <= 1


@pytest.mark.parametrize(("column", "values", "alarms"), [
    ("entropy", np.repeat([1.2, 0.01], 20), ["entropy-gone"]),
    ("completion_length", np.repeat([300.0, 1.0], 20), ["answers-vanish"]),
    ("kl", np.repeat([0.02, 5.0], 20), ["kl-explodes"]),
    ("entropy", np.linspace(1.2, 0.4, 60), []),
    ("completion_length", np.linspace(300, 120, 60), []),
    ("kl", np.linspace(0.001, 0.3, 60), []),
])  # fmt: skip
def test_a_collapse_is_told_and_what_healthy_runs_do_is_none(column, values, alarms):
    values = values * rng().uniform(0.8, 1.2, len(values))
    assert [one.name for one in Trends().add(trace_of(**{column: values}))] == alarms


def test_the_errors_of_all_curves_are_shared():
    assert sum(curve.share for curve in CURVES) == pytest.approx(1)


def test_steps_are_added_once_however_often_they_are_seen():
    values = [*rng(1).normal(0.6, 0.03, 20), *rng(5).normal(0.1, 0.03, 20)]
    trends, found = Trends(), []
    for end in range(1, len(values) + 1):
        found += trends.add(trace_of(reward=values[:end]))
    assert [one.step for one in found] == [one.step for one in reward(values)]


def test_numbers_that_are_none_are_no_alarm():
    values = np.full(30, np.nan)
    values[::3] = 0.5
    assert not Trends().add(trace_of(reward=values, kl=np.full(30, np.inf)))


# -- looks


class Says(Hypothesis):
    id, name = "H99", "says-so"

    def __init__(self, levels):
        self.levels = levels

    def sign(self, trace):
        return self.found(self.levels[int(trace.steps["step"].max())], "Seen.", looked_at=1)


def says(monkeypatch, levels):
    """Looks are at a hypothesis that finds these levels, step by step."""
    look, one = lookout.diagnose, Says(dict(enumerate(levels, 1)))
    monkeypatch.setattr(lookout, "diagnose", lambda trace: look(trace, hypotheses=(one,)))


def looked(*rows):
    """What is told of a run at so many rows, one look after another."""
    watcher = Lookout()
    return [watcher.look(trace_of(reward=np.full(end, 0.5))) for end in rows]


OK, FAULT, MAYBE = [Level.OK], [Level.FAULT], [Level.SUSPECT]


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ([*OK * 2, *FAULT * 5], [(3, "fault")]),
        ([*OK * 7, *MAYBE * 12], [(16, "suspect")]),  # lasted while the steps doubled
        ([*MAYBE * 4, *OK, *MAYBE * 4, *OK], []),
        ([*MAYBE * 8, *FAULT * 4, *MAYBE * 30], [(6, "suspect"), (9, "fault")]),
    ],
)
def test_a_fault_is_told_at_once_and_a_suspicion_when_it_has_lasted(monkeypatch, levels, told):
    says(monkeypatch, levels)
    found = [one for alarms in looked(*range(1, len(levels) + 1)) for one in alarms]
    assert [(one.step, one.level) for one in found] == told


def test_a_run_that_is_first_seen_late_is_told_of_what_lasts(monkeypatch):
    says(monkeypatch, MAYBE * 40)
    assert [[one.code for one in alarms] for alarms in looked(40)] == [["H99"]]


def test_a_training_that_begins_anew_is_told_of_anew(monkeypatch):
    says(monkeypatch, FAULT * 8)
    assert [len(alarms) for alarms in looked(8, 8, 2, 3)] == [1, 0, 1, 0]


def test_a_look_is_at_the_latest_steps_alone(monkeypatch):
    seen = []
    look = lookout.diagnose
    monkeypatch.setattr(
        lookout, "diagnose", lambda trace: seen.append(len(trace.steps)) or look(trace)
    )
    Lookout().look(trace_of(reward=np.full(200, 0.5)))
    assert max(seen) == lookout.WINDOW


def test_where_processes_write_side_by_side_the_last_step_is_waited_for():
    trace = trace_of(reward=np.full(5, 0.5))
    trace.run["settings"] = {"world_size": 2}
    assert lookout.whole_steps(trace).tolist() == [1, 2, 3, 4]
