"""H48 logs-lie."""

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts, trace_of

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


test_levels_of_the_sign = levels_of(H.sign, {
    "a log that says something else": ("suspect", lambda: run(lambda step, reward: 2 * reward)),
    "one odd step is no lying log": ("ok", lambda: run(lambda step, reward: reward + (step == 3))),
    "a log of every other step is left out": ("unknown",
        lambda: run(lambda step, reward: None if step % 2 else 9.0)),
})  # fmt: skip
