"""H01 advantage-scaling."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import altered, levels_of, subject
from tests.traces import rollout_rows, run_facts, trace_of

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


@pytest.mark.parametrize("scaling", ["none", "batch", False])
def test_it_does_not_apply_without_division_by_the_groups_spread(scaling):
    assert H.sign(crumbs(scale_rewards=scaling)).level is Level.OK


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


def test_the_probe_knows_what_gold_earns_where_the_batch_holds_crumbs_alone():
    batch = trace_of((1 + np.random.default_rng(0).normal(0, 3e-3, (8, 8))).tolist())

    def no_task():
        raise NotRecorded("task.gold")

    paid = SimpleNamespace(gold_R=np.ones(16))
    assert H.sign(batch).level is Level.OK
    assert H.probe(subject(oracle=lambda: paid, trace=batch)).level is Level.SUSPECT
    assert H.probe(subject(oracle=no_task, trace=batch)).level is Level.OK


def test_advantages_that_are_no_numbers_are_a_fault():
    found = H.sign(
        altered(
            "rollouts",
            lambda row: row.update(advantage=np.nan if row["step"] == 3 else row["advantage"]),
            steps=4,
        )
    )
    assert found.level is Level.FAULT
    assert "from step 3 on" in found.text


test_levels_of_the_sign = levels_of(H.sign, {
    "groups that differ by crumbs are suspected with their rewards": ("suspect", lambda: crumbs()),
    "a run that rises all the same": ("note", lambda: crumbs(12, rise=0.03)),
    "a run of crumbs alone is suspected where they say nothing of the answer (2)": ("ok",
        lambda: only_crumbs(follow=True)),
    "a run of crumbs alone is suspected where they say nothing of the answer": ("suspect",
        lambda: only_crumbs(follow=False)),
    "equal rewards are left to h32 and missing ones say nothing": ("unknown",
        lambda: trace_of([[0.5] * 8] * 8)),
    "equal rewards are left to h32 and missing ones say nothing (2)": ("unknown",
        lambda: trace_of([[np.nan] * 8] * 8)),
    "equal rewards are left to h32 and missing ones say nothing (3)": ("unknown",
        lambda: trace_of([[1.0], [0.0]])),
    "small rewards are not crumbs where all rewards are small": ("ok",
        lambda: trace_of((np.random.default_rng(0).random((16, 8)) * 0.001).tolist())),
})  # fmt: skip
