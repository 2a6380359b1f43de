"""H41 tool-errors."""

import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
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
    found = H.sign(run(edit))
    assert found.level is Level.SUSPECT
    assert found.evidence


def test_calls_that_fail_later_are_what_a_broken_policy_writes():
    assert H.sign(run(lambda row: row["step"] > 2 and malformed(row))).level is Level.OK


def test_a_tool_that_fails_now_and_then_is_seen_over_more_groups():
    """For every fourth prompt: eight groups are too few to be certain."""

    def now_and_then(row):
        row["tool_errors"] = int(row["group"] % 4 == 0)

    assert H.sign(run(now_and_then, steps=1)).level is Level.OK
    assert H.sign(run(now_and_then, steps=20)).level is Level.SUSPECT


def test_calls_that_nobody_reads_are_suspected():
    found = H.sign(run(unread))
    assert found.level is Level.SUSPECT
    assert "not read as one" in found.text
    assert CALL[:11] in found.evidence[0].text


def test_the_text_of_a_call_is_none_where_the_trainer_has_no_tool():
    rows = healthy_rows(steps=8)
    for row in rows["rollouts"]:
        unread(row)
    facts = run_facts()
    facts["settings"] = {**facts["settings"], "tools": 0}
    assert H.sign(Trace.from_rows(run=facts, **rows)).level is Level.OK


def test_the_share_of_unread_calls_says_what_it_is_a_share_of():
    found = H.sign(run(lambda row: row["step"] > 1 or unread(row)))
    assert found.text.startswith("64 of the 64 rollouts of the first 8 groups hold the text")


def test_a_call_that_a_limit_cut_off_is_not_unread():
    assert H.sign(run(lambda row: unread(row, "turn_length"))).level is Level.OK


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


def test_calls_that_are_answered_are_ruled_out():
    assert H.sign(healthy_trace()).level is Level.OK


def test_a_run_without_tools_is_not_concerned():
    found = H.sign(run(lambda row: row.update(tool_calls=0)))
    assert "Does not apply" in found.text


def test_a_log_tells_its_share_of_failed_calls():
    assert H.sign(logged(0.4)).level is Level.SUSPECT
    assert H.sign(logged(0.01)).level is Level.OK
    assert H.sign(logged(0.4, steps=1)).level is Level.UNKNOWN
    with pytest.raises(NotRecorded):
        H.sign(Trace.from_rows(steps=[{"step": 1, "metrics": {"reward": 1.0}}]))
