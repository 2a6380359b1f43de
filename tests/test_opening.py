"""A page opens with the picture of its cause."""

import numpy as np
import pytest

from flatline.diagnosis.report import Report, diagnose
from flatline.hypotheses import find
from flatline.hypotheses.base import Evidence, Finding, Level
from flatline.report.charts import Chart, figure, points
from flatline.report.examples import chosen
from flatline.report.opening import opening_of
from flatline.trace import Trace
from tests.traces import blind_rows, healthy_rows, rollout_rows, run_facts


def trace_of(rows):
    return Trace.from_rows(run=run_facts(), **rows)


def finding(code, **more):
    return Finding(hypothesis=code, name="x", level=Level.FAULT, text="seen", **more)


def opened(trace, code, *, charts=(), points_to=(), **more):
    report = Report(subject="x", findings=(finding(code, **more),), trend=None)
    return opening_of(trace, report, charts, points_to)


def curve(values, id="kl"):
    x = np.arange(1, len(values) + 1)
    made = figure([points(x, np.array(values, dtype=float), "mean")], y="KL")
    return Chart(id=id, title="KL?", healthy="", figure=made)


def test_hidden_context_is_blacked_out_on_the_side_of_the_trainer_alone():
    trace = trace_of(blind_rows())
    opening = opening_of(trace, diagnose(trace), (), ())
    sampler, trainer = opening.sides
    assert {mark for mark, _ in sampler.runs} == {""}
    assert "black" in {mark for mark, _ in trainer.runs}
    black = "".join(text for mark, text in trainer.runs if mark == "black")
    assert black and black in "".join(text for _, text in sampler.runs)
    assert "hidden (under bars)" in trainer.note


def test_a_loss_on_words_of_others_is_shown_beside_what_the_model_wrote():
    rows = healthy_rows(steps=2)
    for row in rows["tokens"]:
        row["trained"] = np.ones(len(row["ids"]), dtype=np.uint8)
        row["author"] = np.array([0, *row["author"][1:-1], 1], dtype=np.uint8)
    wrote, trained = opened(trace_of(rows), "H02").sides
    assert "other" not in {mark for mark, _ in wrote.runs}
    assert "other" in {mark for mark, _ in trained.runs}


def test_a_group_is_shown_with_the_advantages_trained_on_and_those_of_its_rewards():
    rows = rollout_rows([[0, 1, 1, 0]])
    for row in rows:
        row["advantage"] = 0.0
    settings = {"num_generations": 4, "per_device_batch_size": 4, "scale_rewards": "none"}
    facts = run_facts(reward_weights={"right": 1.0}, **settings)
    trace = Trace.from_rows(run=facts, rollouts=rows)
    opening = opened(trace, "H53", evidence=(Evidence(text="", step=1, rollout=2),))
    assert [row["reward"] for row in opening.rows] == [0, 1, 1, 0]
    assert {row["used"] for row in opening.rows} == {0.0}
    assert [row["wanted"] for row in opening.rows] == [-0.5, 0.5, 0.5, -0.5]
    assert opening.compared == "advantage its rewards ask for"
    assert all(row["wrong"] for row in opening.rows)


@pytest.mark.parametrize("code", ["H09", "H02", "H53"])
def test_where_nothing_of_it_was_recorded_the_curve_takes_its_place(code):
    trace = Trace.from_rows(steps=[{"step": 1, "reward": 0.5}])
    assert opened(trace, code, charts=[curve([1, 2, 3])], points_to=("kl",)).chart.id == "kl"


def test_a_curve_names_the_step_where_it_breaks():
    trace = Trace.from_rows(steps=[{"step": 1, "reward": 0.5}])
    values = [0.1, 0.12, 0.1, 0.11, 0.1, 0.1, 5.0, 5.1, 5.0, 5.2, 5.1, 5.0]
    chart = opened(trace, "H03", charts=[curve(values)], points_to=("kl",)).chart
    assert [mark["x"] for mark in chart.figure["layout"]["annotations"]] == [7]


def test_without_a_cause_the_page_opens_with_the_reward():
    report = Report(subject="x", findings=(), trend=None)
    charts = [curve([1, 2]), curve([1, 2], id="reward")]
    trace = Trace.from_rows(steps=[{"step": 1, "reward": 0.5}])
    assert opening_of(trace, report, charts, ()).chart.id == "reward"


def never_paid(from_row, pay, *, generations=8):
    """The rows of a run whose reward function pays this from a row of each step on."""
    rows = healthy_rows(steps=12, prompts=64 // generations, generations=generations, gain=0.0)
    for row in rows["rollouts"]:
        if row["rollout"] >= from_row:
            row |= {"reward": pay, "advantage": pay, "parts": {}, "gold": None}
    return rows


@pytest.mark.parametrize(
    ("code", "pay", "generations"), [("H05", float("nan"), 8), ("H32", 0.0, 8), ("H05", np.nan, 32)]
)
def test_rows_that_show_the_fault_are_those_that_the_page_shows(code, pay, generations):
    from_row = 20 if generations == 32 else 8
    trace = trace_of(never_paid(from_row, pay, generations=generations))
    report = diagnose(trace, hypotheses=[find(code)])
    (alarm,) = report.alarms
    assert alarm.hypothesis == code
    opening = opening_of(trace, report, (), ())
    assert any(row["rollout"] >= from_row for row in opening.rows)
    assert all(row["rollout"] >= from_row for row in opening.rows) or generations == 32
    assert len(opening.rows) <= 16
    assert any(one.rollout >= from_row for one in chosen(trace, report))
