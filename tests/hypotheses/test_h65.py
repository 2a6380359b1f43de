"""H65 slow-dropped."""

import numpy as np
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline import diagnose
from flatline.hypotheses.base import Level
from flatline.hypotheses.h65_slow_dropped import SlowDropped
from flatline.trace import Trace

H = SlowDropped()


def with_lengths(dropped, *, finish="answered", trained=0):
    """A healthy run whose rollouts have other lengths, and where these are never trained."""
    rows, rng = healthy_rows(steps=3), np.random.default_rng(0)
    for row in rows["rollouts"]:
        row["completion_tokens"] = int(rng.integers(10, 100))
        row["finish"] = "answered"
        if dropped(row, rng):
            row |= {"trained_tokens": trained, "finish": finish}
    return Trace.from_rows(run=run_facts(), **rows)


def long(row, rng):
    return row["completion_tokens"] > 70


def test_long_rollouts_that_are_never_trained_are_a_fault():
    found = H.sign(with_lengths(long))
    assert found.level is Level.FAULT
    assert "slow ones" in found.text and "tokens" in found.text and "hops" in found.text


def test_rollouts_of_any_length_that_are_left_out_are_somebody_elses():
    assert H.sign(with_lengths(lambda row, rng: rng.random() < 0.3)).level is Level.UNKNOWN


def test_rollouts_that_a_limit_cut_may_be_left_out():
    assert H.sign(with_lengths(long, finish="length")).level is Level.OK


def test_what_is_said_to_be_given_up_counts_whatever_is_trained_of_it():
    assert H.sign(with_lengths(long, finish="timeout", trained=5)).level is Level.FAULT


def test_the_cause_is_named_before_the_end_of_sequence():
    assert diagnose(with_lengths(long)).alarms[0].hypothesis == "H65"


def test_a_count_of_the_trainers_own_log_is_noted():
    metrics = {"fully_async/count/dropped_stale_samples": 12.0}
    found = H.sign(Trace.from_rows(steps=[{"step": 1, "metrics": metrics}]))
    assert found.level is Level.NOTE and found.points_at_cause and "12" in found.text


def test_a_count_of_nothing_is_no_note():
    rows = healthy_rows(steps=2)
    for row in rows["steps"]:
        row["metrics"] = {"stale_results_dropped": 0.0}
    assert H.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK


def test_a_healthy_run_is_silent():
    assert H.sign(healthy_trace()).level is Level.OK
