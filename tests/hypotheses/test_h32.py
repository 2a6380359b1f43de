"""H32 zero-variance-groups."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.traces import healthy_trace, rollout_rows, run_facts, trace_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h32_zero_variance_groups import ZeroVarianceGroups
from flatline.trace import Trace

H = ZeroVarianceGroups()


def run(dead_at, steps=10, *, level=lambda step: 1.0):
    """Eight groups a step, of which the share `dead_at(step)` has equal rewards."""
    rows = []
    for step in range(1, steps + 1):
        dead = round(8 * dead_at(step))
        live = [[0.0, level(step)] * 4] * (8 - dead)
        rows += rollout_rows([[level(step)] * 8] * dead + live, step=step)
    return Trace.from_rows(run=run_facts(), rollouts=rows)


def oracle(ties, played=40, dead=0.0):
    cases = [SimpleNamespace(problem="p", script="empty", reward=1.0, gold_reward=1.0)] * ties
    found = SimpleNamespace(not_below_gold=cases, played=played)
    return SimpleNamespace(oracle=lambda: found, trace=run(lambda step: dead, steps=1))


def test_mostly_dead_groups_are_suspected():
    found = H.sign(run(lambda step: 7 / 8))
    assert found.level is Level.SUSPECT
    assert found.measured.n == 80
    assert found.evidence


def test_a_run_that_only_ends_with_dead_groups_has_worn_its_prompts_out():
    worn = run(lambda step: 0.0 if step < 3 else 1.0, steps=30)
    assert H.sign(worn).level is Level.NOTE


def test_half_dead_is_noted_and_a_healthy_run_is_ruled_out():
    assert H.sign(run(lambda step: 5 / 8)).level is Level.NOTE
    assert H.sign(healthy_trace()).level is Level.OK
    assert H.sign(healthy_trace(generations=4, steps=20)).level is Level.OK


def test_equal_rewards_everywhere_are_told_with_their_value():
    found = H.sign(run(lambda step: 1.0, level=lambda step: 0.5))
    assert found.level is Level.SUSPECT
    assert "All 640 rewards, of 80 groups, are 0.5" in found.text


def test_rollouts_that_no_function_judged_are_told_beside_equal_rewards():
    found = H.sign(trace_of([[1.0, 1.0, np.nan, np.nan] * 2] * 8))
    assert found.level is Level.SUSPECT
    assert "All 32 rewards, of 8 groups, are 1." in found.text
    assert "The other 32 of 64 rollouts have none" in found.text and "None" in found.fix


def test_few_groups_are_too_little():
    assert H.sign(trace_of([[1.0] * 8, [0.0, 1.0] * 4])).level is Level.UNKNOWN
    assert H.sign(trace_of([[1.0], [0.0]])).level is Level.UNKNOWN
    assert H.sign(trace_of([[np.nan] * 4])).level is Level.UNKNOWN


def test_crumbs_are_not_equal():
    crumbs = [[0.5 + 1e-3 * at for at in range(8)]] * 40
    assert H.sign(trace_of(crumbs)).level is Level.OK


@pytest.mark.parametrize(("scaling", "level"), [("group", Level.SUSPECT), ("batch", Level.UNKNOWN)])
def test_a_log_without_rollouts_is_believed_unless_it_speaks_of_the_batch(scaling, level):
    steps = [{"step": step, "reward": 0.5, "zero_std_share": 0.9} for step in range(1, 21)]
    assert H.sign(Trace.from_rows(run=run_facts(scale_rewards=scaling), steps=steps)).level is level


def test_the_probe_faults_a_reward_that_pays_wrong_plays_like_gold():
    assert H.probe(oracle(30, dead=7 / 8)).level is Level.FAULT


def test_the_probe_believes_groups_that_differ_all_the_same():
    assert H.probe(oracle(30, dead=0.0)).level is Level.OK


def test_the_probe_otherwise_reads_the_batch():
    assert H.probe(oracle(0)).level is Level.OK
