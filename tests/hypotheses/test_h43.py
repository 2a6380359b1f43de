"""H43 behaviour-collapse."""

import numpy as np
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h43_behaviour_collapse import BehaviourCollapse
from flatline.trace import Trace

H = BehaviourCollapse()


def run(edit, *, gain=0.0, steps=12, ids=None, prompts=8):
    rows = healthy_rows(steps=steps, gain=gain, prompts=prompts)
    for row in rows["rollouts"]:
        edit(row)
    for row in rows["tokens"]:
        if ids is not None:
            own = row["trained"] == 1
            row["ids"] = np.where(own, ids(row), row["ids"])
    return Trace.from_rows(run=run_facts(), **rows)


def given_up(row):
    row["tool_calls"] = 2 if row["step"] < 5 else row["rollout"] % 8 == 0


def nothing(row):
    pass


def test_calls_that_are_given_up_while_the_reward_stays_are_suspected():
    found = H.sign(run(given_up))
    assert found.level is Level.SUSPECT
    assert found.severity < 1, "behind every other suspect"


def test_calls_that_are_given_up_while_the_reward_rises_are_noted():
    assert H.sign(run(given_up, gain=0.5, steps=30)).level is Level.NOTE


def test_a_model_that_comes_to_repeat_itself_is_suspected():
    found = H.sign(run(nothing, prompts=32, ids=lambda row: 7 if row["step"] > 6 else row["ids"]))
    assert found.level is Level.SUSPECT
    assert "has been in it before" in found.text


def test_a_model_that_always_repeated_itself_did_not_collapse():
    assert H.sign(run(nothing, prompts=32, ids=lambda row: 7)).level is Level.OK


def terse(row):
    row["model_tokens"] = 250 if row["step"] < 3 else 6 + row["rollout"] % 3


def test_a_model_that_stops_thinking_within_two_steps_is_suspected():
    found = H.sign(run(terse))
    assert found.level is Level.SUSPECT
    assert "7 tokens of its own, at first 250" in found.text
    assert found.severity < 1, "behind every other suspect"


def test_a_model_that_becomes_terse_and_better_did_not_collapse():
    def learnt(row):
        terse(row)
        row["parts"] = {"exact_match": float(row["step"] >= 3)}

    assert H.sign(run(learnt)).level is Level.OK


def test_a_model_that_writes_half_as_much_did_not_collapse():
    def shorter(row):
        row["model_tokens"] = 250 if row["step"] < 3 else 125

    assert H.sign(run(shorter)).level is Level.OK


def test_a_run_that_keeps_its_calls_is_ruled_out():
    assert H.sign(healthy_trace()).level is Level.OK


def test_a_short_run_says_nothing_and_one_without_tools_is_not_concerned():
    assert H.sign(healthy_trace(steps=3)).level is Level.UNKNOWN
    assert "Does not apply" in H.sign(run(lambda row: row.update(tool_calls=0))).text
