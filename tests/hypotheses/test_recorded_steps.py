"""Recorded steps beside the specified ones: silent on healthy runs, unknown without the columns."""

import numpy as np
import pytest
from tests.traces import healthy_rows, run_facts

from flatline.diagnosis import diagnose, explained_by
from flatline.errors import NotRecorded
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.departure import DepartureAlong, named_by_the_catalogue
from flatline.trace import Trace

STEPS = 10
ALONG = ("H51", "H52", "H53", "H54", "H58")
SETTINGS = {
    "reward_weights": {"exact_match": 0.9, "format": 0.1},
    "multi_objective_aggregation": "sum_then_normalize",
    "dropout": 0.0,
    "distinct_prompts": 1000,
    "precision": "float32",
    "max_steps": STEPS,
    "per_device_batch_size": 64,
}


def rows():
    return healthy_rows(steps=STEPS)


def trace(tables=None, **settings):
    return Trace.from_rows(run=run_facts(**SETTINGS | settings), **(tables or rows()))


def told(code, tables=None, **settings):
    return find(code).sign(trace(tables, **settings))


@pytest.mark.parametrize("code", ALONG)
def test_a_healthy_run_is_the_specified_one(code):
    assert told(code).level is Level.OK


@pytest.mark.parametrize("code", ALONG)
def test_a_run_that_does_not_say_what_was_asked_for_cannot_be_told(code):
    older = run_facts()
    assert "reward_weights" not in older["settings"]
    with pytest.raises(NotRecorded):
        find(code).sign(Trace.from_rows(run=older, **rows()))


@pytest.mark.parametrize("code", ALONG)
def test_a_loop_of_ones_own_is_not_held_against_it(code):
    run = {**run_facts(**SETTINGS), "source": "recorder"}
    with pytest.raises(NotRecorded):
        find(code).sign(Trace.from_rows(run=run, **rows()))


def test_every_stage_that_recorded_steps_show_has_a_sign():
    assert {code for code in ALONG if isinstance(find(code), DepartureAlong)} == set(ALONG)


def test_advantages_of_a_late_step_are_recomputed():
    tables = rows()
    for row in tables["rollouts"]:
        if row["step"] >= 7:
            row["advantage"] = max(row["advantage"], 0.0)
    found = told("H53", tables)
    assert found.level is Level.FAULT and "from step 7 on" in found.text
    assert "expected [" in found.evidence[0].text


@pytest.mark.parametrize(("scale", "expected"), [("group", Level.OK), ("none", Level.FAULT)])
def test_advantages_are_those_of_the_scale_asked_for(scale, expected):
    assert told("H53", scale_rewards=scale).level is expected


def test_advantages_over_the_spread_of_a_batch():
    tables = rows()
    for step in range(1, STEPS + 1):
        here = [row for row in tables["rollouts"] if row["step"] == step]
        reward = np.array([row["reward"] for row in here]).reshape(-1, 8)
        off = (reward - reward.mean(1, keepdims=True)) / (reward.std(ddof=1) + 1e-4)
        for row, advantage in zip(here, off.ravel(), strict=True):
            row["advantage"] = advantage
    assert told("H53", tables, scale_rewards="batch").level is Level.OK
    assert told("H53", tables).level is Level.FAULT


def test_what_is_not_specified_is_unknown():
    assert "Not specified" in told("H53", scale_rewards="median").text
    assert told("H53", scale_rewards="median").level is Level.UNKNOWN
    assert told("H58", lr_scheduler_type="polynomial").level is Level.UNKNOWN


def test_a_rate_that_ends_at_step_5():
    tables = rows()
    for row in tables["steps"]:
        if row["step"] >= 5:
            row["learning_rate"] = 0.0
    found = told("H58", tables)
    assert found.level is Level.FAULT and "step 5 of 10" in found.text
    assert told("H58", tables, lr_scheduler_type="given").level is Level.FAULT


def test_a_schedule_of_ones_own_may_have_any_shape():
    tables = rows()
    for row in tables["steps"]:
        row["learning_rate"] = 1e-4 / (1 + row["step"])
    assert told("H58", tables, lr_scheduler_type="given").level is Level.OK
    assert told("H58", tables).level is Level.FAULT


def test_weights_that_change_between_two_steps():
    tables = rows()
    for row in tables["weights"]:
        if row["step"] == 4:
            row["between"] = 1e-3
    found = told("H58", tables)
    assert found.level is Level.FAULT and "between step 3 and step 4" in found.text


def test_a_cause_that_was_seen_is_no_consequence_of_the_catalogue():
    """Weights that are put back also look as if the reference moved with the policy."""
    tables = rows()
    for row in tables["weights"]:
        if row["step"] > 1:
            row["between"] = 1e-3
    found = [told("H58", tables), find("H06").found(Level.FAULT, "the reference moves")]
    assert explained_by(named_by_the_catalogue(found, HYPOTHESES)) == {"H06": "H58"}


def test_weights_that_never_get_away_from_their_start():
    tables = rows()
    for row in tables["weights"]:
        row |= {"travel": 1e-4, "between": None}
    found = told("H58", tables)
    assert found.level is Level.FAULT and "put back" in found.text


def test_old_log_probs_of_another_batch():
    tables = rows()
    for row in tables["tokens"]:
        if row["step"] == 6:
            row["old"] = row["old"] - 0.5
    found = told("H54", tables)
    assert found.level is Level.FAULT and "step 6" in found.text and "0.5 nats" in found.text


@pytest.mark.parametrize("change", [{"dropout": 0.1}, {"steps_per_generation": 4}])
def test_old_log_probs_that_may_differ_are_left_alone(change):
    tables = rows()
    for row in tables["tokens"]:
        row["old"] = row["old"] - 0.5
    assert told("H54", tables, **change).level is Level.UNKNOWN


def test_a_weight_that_is_ignored():
    found = told("H52", reward_weights={"exact_match": 0.9, "format": 0.5})
    assert found.level is Level.FAULT and "0.500" in found.text


def test_a_reward_that_remembers():
    """The second time that a prompt is answered with the same words it earns nothing."""
    tables = rows()
    for row in tables["rollouts"]:
        row["prompt_id"] = f"p{row['group']}"
        row["completion"] = f"the same words {row['group']}"
        right = float(row["step"] == 1)
        row |= {"parts": {"exact_match": right, "format": 1.0}, "reward": 0.9 * right + 0.1}
        row["completion_tokens"] = 14
    found = told("H52", tables)
    assert found.level is Level.SUSPECT and "it remembers something" in found.text


def test_tokens_that_lost_their_loss():
    tables = rows()
    for row in tables["rollouts"]:
        if row["step"] == 3:
            row["trained_tokens"] -= 1
    found = told("H51", tables)
    assert found.level is Level.FAULT and "from step 3 on" in found.text


def test_the_first_stage_is_the_finding_and_later_ones_its_consequence():
    tables = rows()
    for row in tables["rollouts"]:
        row["advantage"] = max(row["advantage"], 0.0)
    for row in tables["steps"]:
        if row["step"] >= 5:
            row["learning_rate"] = 0.0
    report = diagnose(trace(tables))
    assert {one.hypothesis for one in report.alarms} >= {"H53", "H58"}
    assert [one.hypothesis for one in report.causes] == ["H53"]


def test_a_healthy_run_has_no_alarm():
    assert [one for one in diagnose(trace()).findings if one.level in ALARMS] == []
