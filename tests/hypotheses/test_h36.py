"""H36 turn-credit."""

import numpy as np
import pytest
from tests.traces import healthy_rows, run_facts, trace_of

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h36_turn_credit import TurnCredit
from flatline.trace import Trace

H = TurnCredit()


def run(pay, *, steps=12, noise=0.0):
    """A run in which those who found all are right in 8 of 10 cases, the others in 3."""
    rows = healthy_rows(steps=steps)
    rng = np.random.default_rng(0)
    for row in rows["rollouts"]:
        found = rng.random() < 0.5
        right = rng.random() < (0.8 if found else 0.3)
        row |= {"supporting": 2, "supporting_seen": 2 if found else 1}
        row["parts"] = {"exact_match": float(right)}
        row["reward"] = pay(found, right) + noise * rng.normal()
    return Trace.from_rows(run=run_facts(), **rows)


def test_finding_that_is_punished_as_much_as_it_helps_is_suspected():
    found = H.sign(run(lambda found, right: right - 0.6 * found))
    assert found.level is Level.SUSPECT
    assert "pushed down" in found.text


def test_completions_of_one_turn_have_no_turns_to_credit():
    rows = healthy_rows(steps=2)
    for row in rows["rollouts"]:
        row["turns"] = 1
    found = H.sign(Trace.from_rows(run=run_facts(tools=0), **rows))
    assert found.level is Level.OK and "Does not apply" in found.text
    rows["rollouts"][0]["turns"] = 2
    assert "Does not apply" not in H.sign(Trace.from_rows(run=run_facts(tools=0), **rows)).text


def test_finding_that_pays_through_the_answer_is_ruled_out():
    assert H.sign(run(lambda found, right: float(right))).level is Level.OK


def test_a_reward_that_does_not_follow_the_answer_either_is_left_to_h05():
    assert H.sign(run(lambda found, right: 0.0, noise=1.0)).level is Level.UNKNOWN


def test_few_groups_say_nothing():
    assert H.sign(run(lambda found, right: right - 0.4 * found, steps=1)).level is Level.UNKNOWN


def test_a_part_of_our_own_tasks_can_say_what_was_found():
    rng = np.random.default_rng(0)
    progress = rng.random((40, 8)).round()
    right = (rng.random((40, 8)) < 0.3 + 0.5 * progress).astype(float)
    parts = [
        {"exact_match": r, "progress": p, "combined": r - 0.6 * p}
        for r, p in zip(right.ravel(), progress.ravel(), strict=True)
    ]
    trace = trace_of((right - 0.6 * progress).tolist(), parts=parts)
    assert H.sign(trace).level is Level.SUSPECT


def test_it_needs_to_know_what_was_found_and_what_is_right():
    with pytest.raises(NotRecorded):
        H.sign(trace_of([[0.0, 1.0]]))
    with pytest.raises(NotRecorded):
        H.sign(trace_of([[0.0, 1.0]], parts={"exact_match": 1.0}))


def test_a_reward_of_one_part_is_compared_with_the_whole():
    assert H.experiment(RunConfig(reward="exact_match")).change == {"reward": "combined"}
    assert H.experiment(RunConfig()) is None
