"""Recorded steps beside the specified ones: silent on healthy runs, unknown without the columns."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

from flatline.diagnosis.report import diagnose, explained_by
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
    "dropout": 0.0, "distinct_prompts": 1000, "precision": "float32", "max_steps": STEPS,
    "per_device_batch_size": 64,
}  # fmt: skip


def rows():
    return healthy_rows(steps=STEPS)


def after(table, edit):
    """The rows of a healthy run after `edit` changed each of a table."""
    tables = rows()
    for row in tables[table]:
        edit(row)
    return tables


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


def in_float32(reward_B, group=8):
    """As a trainer computes them."""
    reward_PG = np.float32(reward_B).reshape(-1, group)
    # One last bit: what a sum of eight in float32 is off by, whatever order it is taken in.
    mean_P1 = np.nextafter(reward_PG.mean(1, keepdims=True), np.float32(0))
    spread_P1 = reward_PG.std(1, ddof=1, keepdims=True) + np.float32(1e-4)
    return ((reward_PG - mean_P1) / spread_P1).ravel()


def test_a_group_of_equal_rewards_may_be_off_by_the_last_bit_of_its_mean():
    tables = rows()
    for row in tables["rollouts"]:
        row["reward"] = 1.2
    advantage_B = in_float32([row["reward"] for row in tables["rollouts"]])
    assert np.abs(advantage_B).max() > 1e-3
    for row, advantage in zip(tables["rollouts"], advantage_B, strict=True):
        row["advantage"] = advantage
    assert told("H53", tables).level is Level.OK
    for row in tables["rollouts"]:
        row["advantage"] = 0.01
    assert told("H53", tables).level is Level.FAULT


def test_rewards_normalised_one_by_one_may_round_to_anything_where_no_group_differs():
    tables = rows()
    for number, row in enumerate(tables["rollouts"]):
        row["reward"] = 1.2
        row["parts"] = {"exact_match": 1.2, "format": 1.2}
        row["advantage"] = 0.9 if number // 8 % 2 else -0.9
    asked = {"multi_objective_aggregation": "normalize_then_sum"}
    assert told("H53", tables, **asked).level is Level.OK
    for number, row in enumerate(tables["rollouts"]):
        row["parts"] = {"exact_match": float(number % 2), "format": 1.0}
    assert told("H53", tables, **asked).level is Level.FAULT


def test_a_cause_that_was_seen_is_no_consequence_of_the_catalogue():
    """Weights that are put back also look as if the reference moved with the policy."""
    tables = rows()
    for row in tables["weights"]:
        if row["step"] > 1:
            row["between"] = 1e-3
    found = [told("H58", tables), find("H06").found(Level.FAULT, "the reference moves")]
    assert explained_by(named_by_the_catalogue(found, HYPOTHESES)) == {"H06": "H58"}


def test_a_reward_that_remembers():
    """The second time that a prompt is answered with the same words it earns nothing."""
    tables = rows()
    for row in tables["rollouts"]:
        row["prompt_id"] = f"p{row['group']}"
        row["completion"] = f"the same words {row['group']}"
        right = float(row["step"] == 1)
        row |= {"parts": {"exact_match": right, "format": 1.0}, "reward": 0.9 * right + 0.1}
        row["completion_tokens"] = 14
    assert told("H52", tables).level is Level.SUSPECT


def unjudged(row, advantage=0.0):
    """A rollout for which every function returned None."""
    row |= {"parts": {}, "reward": None, "advantage": advantage}


def test_a_trainer_that_makes_nothing_judged_into_0_is_named_before_log_judge_and_advantages():
    """Another function loses a part of its rows as well, which a sound sum leaves out."""
    tables = rows()
    for row in tables["rollouts"]:
        if row["rollout"] % 8 == 0:
            unjudged(row, advantage=-0.7)
        elif row["rollout"] % 8 == 1:
            row["parts"].pop("format")
    for row in tables["steps"]:
        if "metrics" in row:
            row["metrics"]["reward"] *= 0.875
    report = diagnose(trace(tables))
    assert report.alarms[0].hypothesis == "H52"
    assert {explained_by(report.findings)[code] for code in ("H48", "H53", "H68")} == {"H52"}


def test_a_judge_that_gives_up_in_a_sound_trainer_is_the_judges_where_a_part_is_lost():
    tables = rows()
    for row in tables["rollouts"]:
        if row["rollout"] % 8 == 1:
            row["parts"].pop("format", None)
            row["reward"] = 0.9 * row["parts"]["exact_match"]
    assert told("H52", tables).level is Level.OK
    assert told("H68", tables).level is Level.SUSPECT


def test_a_judge_that_gives_up_whole_rows_in_a_sound_trainer_is_nobodys_fault():
    tables = rows()
    for row in tables["rollouts"]:
        if row["rollout"] % 8 == 0:
            unjudged(row)
    assert told("H52", tables).level is Level.OK
    assert told("H68", tables).level is not Level.SUSPECT


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


def without_old():
    tables = rows()
    for row in tables["tokens"]:
        del row["old"]
    return tables


@pytest.mark.parametrize("asked", [
    {"gradient_accumulation_steps": 3, "steps_per_generation": 2},
    {"steps_per_generation": 2}, {"num_iterations": 2},
])  # fmt: skip
def test_rollouts_that_are_trained_after_an_update_need_old_log_probs(asked):
    assert told("H54", without_old(), algorithm="grpo", **asked).level is Level.FAULT
    assert told("H54", algorithm="grpo", **asked).level is not Level.FAULT


def test_a_loss_that_needs_no_old_log_probs_is_left_alone():
    for asked in ({}, {"gradient_accumulation_steps": 4, "steps_per_generation": 2}):
        assert told("H54", without_old(), algorithm="grpo", **asked).level is Level.UNKNOWN
    assert told("H54", without_old(), num_iterations=2).level is Level.UNKNOWN, "no known algorithm"


def paid_up_to(last, **settings):
    tables = rows()
    for row in tables["rollouts"]:
        paid = float(row["rollout"] < last and row["rollout"] % 2)
        row |= {"reward": 0.9 * paid, "parts": {"exact_match": paid, "format": 0.0}}
    return told("H52", tables, **settings)


WRONG = {
    "advantages of a late step": ("H53", "from step 7 on", "rollouts",
        lambda row: row["step"] >= 7 and row.update(advantage=max(row["advantage"], 0.0))),
    "a rate that ends": ("H58", "step 5 of 10", "steps",
        lambda row: row["step"] >= 5 and row.update(learning_rate=0.0)),
    "weights that change between two steps": ("H58", "between step 3 and step 4", "weights",
        lambda row: row["step"] == 4 and row.update(between=1e-3)),
    "weights that never get away from their start": ("H58", "put back", "weights",
        lambda row: row.update(travel=1e-4, between=None)),
    "old log-probs of another batch": ("H54", "step 6", "tokens",
        lambda row: row["step"] == 6 and row.update(old=row["old"] - 0.5)),
    "tokens that lost their loss": ("H51", "from step 3 on", "rollouts",
        lambda row: row["step"] == 3 and row.update(trained_tokens=row["trained_tokens"] - 1)),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_departs_is_told_with_its_step(what):
    code, said, table, edit = WRONG[what]
    found = told(code, after(table, edit))
    assert found.level is Level.FAULT and said in found.text


def falling(row):
    row["learning_rate"] = 1e-4 / (1 + row["step"])


def older(row):
    row["old"] = row["old"] - 0.5


test_levels = levels_of(None, {
    "a given rate that ends": ("fault",
        lambda: told("H58", after("steps", lambda row: row["step"] >= 5 and row.update(
            learning_rate=0.0)), lr_scheduler_type="given")),
    "a given rate that is next to nothing from the first step on": ("fault",
        lambda: told("H58", after("steps", lambda row: row.update(learning_rate=1e-8)),
            lr_scheduler_type="given")),
    "a schedule of ones own may have any shape": ("ok",
        lambda: told("H58", after("steps", falling), lr_scheduler_type="given")),
    "a constant one may not": ("fault", lambda: told("H58", after("steps", falling))),
    "old log-probs of a policy with dropout": ("unknown",
        lambda: told("H54", after("tokens", older), dropout=0.1)),
    "old log-probs of several steps of a generation": ("unknown",
        lambda: told("H54", after("tokens", older), steps_per_generation=4)),
    "a step at which no function was heard": ("ok",
        lambda: told("H52", after("rollouts",
            lambda row: row["step"] == 3 and unjudged(row, advantage=row["advantage"])))),
    "what is not specified is unknown": ("unknown", lambda: told("H53", scale_rewards="median")),
    "what is not specified is unknown (2)": ("unknown",
        lambda: told("H58", lr_scheduler_type="polynomial")),
    "a weight that is ignored": ("fault",
        lambda: told("H52", reward_weights={"exact_match": 0.9, "format": 0.5})),
    "rows that stand late and are never paid are suspected": ("suspect", lambda: paid_up_to(20)),
    "rows that stand late and are never paid are suspected (2)": ("ok", lambda: paid_up_to(64)),
    "the order may be meant": ("ok", lambda: paid_up_to(20, shuffle_dataset=False)),
})  # fmt: skip
