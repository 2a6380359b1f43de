"""H41 tool-errors."""

import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h41_tool_errors import ToolErrors
from flatline.trace import Trace

H = ToolErrors()
CALL = '<tool_call>\n{"name": "look"}\n</tool_call>'


def run(edit, *, steps=6):
    rows = healthy_rows(steps=steps)
    for row in rows["rollouts"]:
        edit(row)
    return Trace.from_rows(run=run_facts(), **rows)


def logged(share, *, steps=10):
    return Trace.from_rows(
        steps=[
            {"step": i, "metrics": {"tools/failure_frequency": share}} for i in range(1, steps + 1)
        ]
    )


def failing(row):
    row["tool_errors"] = row["rollout"] % 2


def malformed(row):
    row["malformed_calls"] = row["rollout"] % 2


def unread(row, finish="answered"):
    row |= {"tool_calls": 0, "completion": CALL, "finish": finish, "turns": 1}


@pytest.mark.parametrize("edit", [failing, malformed])
def test_calls_that_fail_from_the_start_are_suspected(edit):
    assert H.sign(run(edit)).level is Level.SUSPECT


def test_a_tool_that_fails_now_and_then_is_seen_over_more_groups():
    """For every fourth prompt: eight groups are too few to be certain."""

    def now_and_then(row):
        row["tool_errors"] = int(row["group"] % 4 == 0)

    assert H.sign(run(now_and_then, steps=1)).level is Level.OK
    assert H.sign(run(now_and_then, steps=20)).level is Level.SUSPECT


def test_the_text_of_a_call_is_none_where_the_trainer_has_no_tool():
    rows = healthy_rows(steps=8)
    for row in rows["rollouts"]:
        unread(row)
    facts = run_facts()
    facts["settings"] = {**facts["settings"], "tools": 0}
    assert H.sign(Trace.from_rows(run=facts, **rows)).level is Level.OK


def test_calls_that_a_player_of_somebodys_own_answers_are_not_unread():
    """TRL then has one message of text, in which nobody counted."""

    def counted_as_none(row):
        unread(row)
        row["turns"] = 2

    def not_counted(row):
        unread(row)
        row["tool_calls"] = None if row["rollout"] else 0

    assert H.sign(run(counted_as_none)).level is Level.OK
    assert H.sign(run(not_counted)).level is Level.OK


test_levels_of_the_sign = levels_of(H.sign, {
    "calls that fail later are what a broken policy writes": ("ok",
        lambda: run(lambda row: row["step"] > 2 and malformed(row))),
    "calls that nobody reads": ("suspect", lambda: run(unread)),
    "a call that a limit cut off is not unread": ("ok",
        lambda: run(lambda row: unread(row, "turn_length"))),
    "a run without tools is not concerned": ("ok",
        lambda: run(lambda row: row.update(tool_calls=0))),
    "a log tells its share of failed calls (3)": ("unknown", lambda: logged(0.4, steps=1)),
    "a log tells its share of failed calls": ("suspect", lambda: logged(0.4)),
    "a log tells its share of failed calls (2)": ("ok", lambda: logged(0.01)),
})  # fmt: skip
