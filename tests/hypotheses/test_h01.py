"""H01 advantage-scaling."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import subject
from tests.traces import healthy_rows, healthy_trace, rollout_rows, run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h01_advantage_scaling import AdvantageScaling
from flatline.trace import Trace

H = AdvantageScaling()


def crumbs(steps=6, *, size=0.003, rise=0.0, **settings):
    """Most groups differ in the third decimal; a few are told apart."""
    rng = np.random.default_rng(0)
    rows = []
    for step in range(1, steps + 1):
        rewards = 0.5 + rise * step + rng.normal(0, size, (8, 8))
        rewards[0] = [0, 1] * 4
        rows += rollout_rows(rewards.tolist(), step=step)
    return Trace.from_rows(run=run_facts(**settings), rollouts=rows)


def test_groups_that_differ_by_crumbs_are_suspected_with_their_rewards():
    found = H.sign(crumbs())
    assert found.level is Level.SUSPECT
    assert "0.5" in found.evidence[0].text


def test_the_largest_advantage_is_told_beside_what_is_possible():
    text = H.sign(trace_of([[0.0] * 7 + [1.0]] * 8)).text
    assert "largest advantage is 2.47; groups of 8 allow 2.47" in text


def test_a_run_that_rises_all_the_same_is_only_noted():
    assert H.sign(crumbs(12, rise=0.03)).level is Level.NOTE


@pytest.mark.parametrize("scaling", ["none", "batch", False])
def test_it_does_not_apply_without_division_by_the_groups_spread(scaling):
    assert "Does not apply" in H.sign(crumbs(scale_rewards=scaling)).text


def test_healthy_runs_are_ruled_out():
    assert H.sign(healthy_trace()).level is Level.OK
    assert H.sign(healthy_trace(generations=16, prompts=4)).level is Level.OK


def test_small_rewards_are_not_crumbs_where_all_rewards_are_small():
    small = (np.random.default_rng(0).random((16, 8)) * 1e-3).tolist()
    assert H.sign(trace_of(small)).level is Level.OK


def only_crumbs(*, follow):
    """All rewards are 1 and crumbs, which follow the answer or do not."""
    rng = np.random.default_rng(0)
    rows = []
    for step in range(1, 5):
        right = (rng.random((8, 8)) < 0.5).astype(float)
        crumbs = 0.005 * right if follow else rng.normal(0, 0.003, (8, 8))
        rows += rollout_rows((1 + crumbs).tolist(), step=step)
        for row, hit in zip(rows[-64:], right.ravel(), strict=True):
            row["parts"] = {"exact_match": float(hit)}
    return Trace.from_rows(run=run_facts(), rollouts=rows)


def test_a_run_of_crumbs_alone_is_suspected_where_they_say_nothing_of_the_answer():
    assert H.sign(only_crumbs(follow=False)).level is Level.SUSPECT
    assert H.sign(only_crumbs(follow=True)).level is Level.OK


def test_the_probe_knows_what_gold_earns_where_the_batch_holds_crumbs_alone():
    batch = trace_of((1 + np.random.default_rng(0).normal(0, 3e-3, (8, 8))).tolist())

    def no_task():
        raise NotRecorded("task.gold")

    paid = SimpleNamespace(gold_R=np.ones(16))
    assert H.sign(batch).level is Level.OK
    assert H.probe(subject(oracle=lambda: paid, trace=batch)).level is Level.SUSPECT
    assert H.probe(subject(oracle=no_task, trace=batch)).level is Level.OK


def test_equal_rewards_are_left_to_h32_and_missing_ones_say_nothing():
    assert H.sign(trace_of([[0.5] * 8] * 8)).level is Level.UNKNOWN
    assert H.sign(trace_of([[np.nan] * 8] * 8)).level is Level.UNKNOWN
    assert H.sign(trace_of([[1.0], [0.0]])).level is Level.UNKNOWN


def test_advantages_that_are_no_numbers_are_a_fault():
    rows = healthy_rows(steps=4)
    for row in rows["rollouts"]:
        row["advantage"] = np.nan if row["step"] == 3 else row["advantage"]
    found = H.sign(Trace.from_rows(run=run_facts(), **rows))
    assert found.level is Level.FAULT
    assert "from step 3 on" in found.text
