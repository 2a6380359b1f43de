"""H42 turn-budget."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h42_turn_budget import TurnBudget
from flatline.live.records import GoldTurns
from flatline.trace import Trace
from flatline.training.subject import OurSubject

H = TurnBudget()


def run(out, *, reward=0.0, steps=6):
    """A run in which the rollouts that `out` says end at the turn limit and earn `reward`."""
    rows = healthy_rows(steps=steps)
    for row in rows["rollouts"]:
        if out(row):
            row |= {"finish": "turns", "reward": reward}
    return Trace.from_rows(run=run_facts(), **rows)


def subject(turns, limit):
    gold = GoldTurns(needed=np.array(turns), limit=limit)
    return SimpleNamespace(gold_turns=lambda problems: gold)


def test_episodes_that_run_out_of_turns_and_earn_nothing_are_suspected():
    found = H.sign(run(lambda row: row["hops"] == 4))
    assert found.level is Level.SUSPECT
    assert "0% at 2, 0% at 3, 100% at 4" in found.text


def test_episodes_that_run_out_and_earn_all_the_same_are_not():
    assert H.sign(run(lambda row: row["hops"] == 4, reward=1.0)).level is Level.OK


def test_a_policy_that_comes_to_call_for_ever_is_not_short_of_turns():
    assert H.sign(run(lambda row: row["step"] > 4)).level is Level.OK


def test_a_healthy_run_is_ruled_out_and_few_groups_say_nothing():
    assert H.sign(healthy_trace()).level is Level.OK
    assert H.sign(healthy_trace(steps=1, prompts=4)).level is Level.UNKNOWN


def test_completions_of_one_turn_cannot_run_out_of_turns():
    rows = healthy_rows(steps=1, prompts=4)
    for row in rows["rollouts"]:
        row["turns"] = 1
    found = H.sign(Trace.from_rows(run=run_facts(tools=0), **rows))
    assert found.level is Level.OK and "Does not apply" in found.text
    assert H.sign(Trace.from_rows(run=run_facts(tools=1), **rows)).level is Level.UNKNOWN


def test_the_probe_counts_the_turns_of_gold():
    found = H.probe(subject([3, 4, 5] * 5, 4))
    assert found.level is Level.FAULT
    assert "5 of 15 problems cannot be finished" in found.text
    assert H.probe(subject([3, 4, 5], 5)).level is Level.OK


def test_a_task_without_tools_has_no_turns_to_count():
    built = SimpleNamespace(task=SimpleNamespace(tools=()))
    with pytest.raises(NotRecorded):
        OurSubject.gold_turns(SimpleNamespace(_built=built), 15)


def test_twice_the_turns_are_the_other_arm():
    assert H.experiment(RunConfig(max_turns=4)).change == {"max_turns": 8}
    assert H.experiment(RunConfig(task="gsm8k")) is None
