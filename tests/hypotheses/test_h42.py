"""H42 turn-budget."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

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


def test_completions_of_one_turn_cannot_run_out_of_turns():
    rows = healthy_rows(steps=1, prompts=4)
    for row in rows["rollouts"]:
        row["turns"] = 1
    assert H.sign(Trace.from_rows(run=run_facts(tools=0), **rows)).level is Level.OK
    assert H.sign(Trace.from_rows(run=run_facts(tools=1), **rows)).level is Level.UNKNOWN


def test_a_task_without_tools_has_no_turns_to_count():
    built = SimpleNamespace(task=SimpleNamespace(tools=()))
    with pytest.raises(NotRecorded):
        OurSubject.gold_turns(SimpleNamespace(_built=built), 15)


test_levels_of_the_sign = levels_of(H.sign, {
    "episodes that run out of turns and earn nothing": ("suspect",
        lambda: run(lambda row: row["hops"] == 4)),
    "episodes that run out and earn all the same are not": ("ok",
        lambda: run(lambda row: row["hops"] == 4, reward=1.0)),
    "a policy that comes to call for ever is not short of turns": ("ok",
        lambda: run(lambda row: row["step"] > 4)),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "the probe counts the turns of gold": ("fault", lambda: subject([3, 4, 5] * 5, 4)),
    "the probe counts the turns of gold (2)": ("ok", lambda: subject([3, 4, 5], 5)),
})  # fmt: skip
