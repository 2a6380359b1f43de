"""H65 slow-dropped."""

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

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


def test_the_cause_is_named_before_the_end_of_sequence():
    assert diagnose(with_lengths(long)).alarms[0].hypothesis == "H65"


def test_a_count_of_the_trainers_own_log_is_noted():
    metrics = {"fully_async/count/dropped_stale_samples": 12.0}
    found = H.sign(Trace.from_rows(steps=[{"step": 1, "metrics": metrics}]))
    assert found.level is Level.NOTE and found.points_at_cause


def test_a_count_of_nothing_is_no_note():
    rows = healthy_rows(steps=2)
    for row in rows["steps"]:
        row["metrics"] = {"stale_results_dropped": 0.0}
    assert H.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK


test_levels_of_the_sign = levels_of(H.sign, {
    "long rollouts that are never trained": ("fault", lambda: with_lengths(long)),
    "rollouts of any length that are left out are somebody elses": ("unknown",
        lambda: with_lengths(lambda row, rng: rng.random() < 0.3)),
    "rollouts that a limit cut may be left out": ("ok",
        lambda: with_lengths(long, finish="length")),
    "what is said to be given up counts whatever is trained of it": ("fault",
        lambda: with_lengths(long, finish="timeout", trained=5)),
})  # fmt: skip
