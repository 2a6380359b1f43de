"""H40 hop-factor."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.traces import run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h40_hop_factor import HopFactor

H = HopFactor()


def run(factor, *, groups=30, scaling="none"):
    rng = np.random.default_rng(0)
    right = (rng.random((groups, 8)) < 0.5).astype(float)
    hops = np.repeat(2 + np.arange(groups) % 3, 8)
    reward = right * factor(hops.reshape(groups, 8))
    parts = [{"exact_match": one} for one in right.ravel()]
    facts = run_facts(scale_rewards=scaling)
    return trace_of(reward.tolist(), run=facts, hops=hops.tolist(), parts=parts)


def subject(gold, scaling="none"):
    hops = np.array([2.0 + i % 3 for i in range(len(gold))])
    return SimpleNamespace(
        settings={"scale_rewards": scaling},
        oracle=lambda: SimpleNamespace(gold_R=np.array(gold), hops_R=hops),
    )


def test_right_answers_that_earn_more_at_more_hops_are_suspected():
    found = H.sign(run(lambda hops: hops / 2))
    assert found.level is Level.SUSPECT
    assert "1 at 2, 1.5 at 3, 2 at 4 hops" in found.text


def test_a_factor_that_the_groups_spread_cancels_is_noted():
    assert H.sign(run(lambda hops: hops / 2, scaling="group")).level is Level.NOTE


def test_one_pay_for_all_is_ruled_out():
    assert H.sign(run(lambda hops: 1.0)).level is Level.OK


def paid(part, name):
    """Thirty groups that are paid a part of the reward alone; two to four hops, in turn."""
    hops = np.repeat(2 + np.arange(30) % 3, 8).tolist()
    parts = [{name: one} for one in part.ravel()]
    facts = run_facts(scale_rewards="none", correct=name)
    return trace_of(part.tolist(), run=facts, hops=hops, parts=parts)


def test_a_part_that_says_how_right_says_nothing_of_a_factor():
    rng = np.random.default_rng(0)
    harder = rng.random((30, 8)) / (1 + np.arange(30) % 3)[:, None]
    assert H.sign(paid(harder, "accuracy")).level is Level.UNKNOWN


def test_a_factor_inside_the_part_itself_is_seen():
    right = np.random.default_rng(0).random((30, 8)) < 0.5
    factor = 1 + np.arange(30)[:, None] % 3 / 2
    assert H.sign(paid(right * factor, "correctness")).level is Level.SUSPECT


def test_one_level_or_few_right_answers_say_nothing():
    assert H.sign(run(lambda hops: hops / 2, groups=1)).level is Level.UNKNOWN
    with pytest.raises(NotRecorded):
        H.sign(trace_of([[0.0, 1.0]], hops=2))


def test_the_probe_asks_what_gold_earns():
    assert H.probe(subject([1.0, 1.5, 2.0])).level is Level.SUSPECT
    assert H.probe(subject([1.0, 1.5, 2.0], "group")).level is Level.NOTE
    assert H.probe(subject([1.0, 1.0, 1.0])).level is Level.OK
