"""H48 logs-lie."""

import numpy as np
import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h48_logs_lie import LogsLie
from flatline.hypotheses.logged import _cut
from flatline.trace import Trace

H = LogsLie()


def run(change, *, steps=12):
    """A run whose log shows what `change` makes of the step and its reward."""
    rows = healthy_rows(steps=steps)
    for row in rows["steps"]:
        if "metrics" in row:
            row["metrics"]["reward"] = change(row["step"], row["metrics"]["reward"])
    return Trace.from_rows(run=run_facts(), **rows)


def test_a_log_that_says_something_else_is_suspected():
    found = H.sign(run(lambda step, reward: 2 * reward))
    assert found.level is Level.SUSPECT
    assert "12 of 12 steps" in found.text
    assert found.evidence[0].step == 1


def test_a_log_that_says_what_was_earned_is_ruled_out():
    assert H.sign(healthy_trace()).level is Level.OK


def test_one_odd_step_is_no_lying_log():
    assert H.sign(run(lambda step, reward: reward + (step == 3))).level is Level.OK


def test_a_log_of_every_other_step_is_left_out():
    sparse = run(lambda step, reward: None if step % 2 else 9.0)
    assert H.sign(sparse).level is Level.UNKNOWN


def test_it_needs_rollouts_and_a_log():
    with pytest.raises(NotRecorded):
        H.sign(Trace.from_rows(steps=[{"step": 1, "metrics": {"reward": 1.0}}]))
    rows = healthy_rows(steps=3)
    for row in rows["steps"]:
        row.pop("metrics", None)
    with pytest.raises(NotRecorded):
        H.sign(Trace.from_rows(run=run_facts(), **rows))


def test_a_loop_that_records_itself_may_give_its_reward_as_a_column():
    rows = healthy_rows(steps=12)
    for row in rows["steps"]:
        row.pop("metrics", None)
        row["reward"] = 9.0
    trace = Trace.from_rows(run={**run_facts(), "source": "recorder"}, **rows)
    assert H.sign(trace).level is Level.SUSPECT


def test_what_ended_on_a_stop_may_be_logged_as_cut_or_as_whole():
    trace = trace_of([[0.0, 1.0, 0.0, 1.0]], finish=["length", "stop", "eos", "eos"])
    assert _cut(trace, np.arange(4)) == (0.25, 0.5)
