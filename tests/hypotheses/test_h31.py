"""H31: the KL term holds the policy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import subject
from tests.traces import healthy_rows, run_facts

from flatline.config import RunConfig
from flatline.diagnosis.found import explained_by
from flatline.diagnosis.report import rank
from flatline.hypotheses.base import Level
from flatline.hypotheses.h24_learning_rate import LearningRate
from flatline.hypotheses.h31_kl_anchor import KlAnchor
from flatline.live.step_records import KlPull
from flatline.trace import Trace

H31 = KlAnchor()


def held(kl_of_step, *, beta=0.5, gain=0.0, prompts=24):
    rows = healthy_rows(steps=24, prompts=prompts, gain=gain)
    for row in rows["steps"][1:]:
        row["kl"] = kl_of_step(row["step"])
    return Trace.from_rows(run=run_facts(beta=beta), **rows)


def plateau(step):
    return 0.01 * (1 - math.exp(-step)) * (1 + 0.02 * (step % 2))


def probed(kl, *, growth=10.0):
    pull = KlPull(
        beta=0.5, scale=0.01, reward=1.0, kl=kl, further=10, kl_further=growth * kl, cosine=-0.9
    )
    return H31.probe(subject(kl_pull=lambda: pull))


def test_a_kl_that_stands_still_under_a_flat_reward_is_suspected():
    assert H31.sign(held(plateau)).level is Level.SUSPECT


def test_a_kl_that_goes_on_or_a_reward_that_rises_leaves_a_note():
    assert H31.sign(held(lambda step: 0.002 * step)).level is Level.NOTE
    assert H31.sign(held(plateau, gain=0.5)).level is Level.NOTE


def risen(*, beta=0.5, solved=False):
    """A reward that rises in the first third of the run and stands from there on."""
    rows = healthy_rows(steps=24, prompts=48, gain=0.0)
    for row in rows["steps"][1:]:
        row["kl"] = plateau(row["step"])
    for row in rows["rollouts"]:
        early = row["step"] <= 8
        row["reward"] = 0.2 * row["reward"] if early else 1.0 if solved else row["reward"]
    return Trace.from_rows(run=run_facts(beta=beta), **rows)


def test_a_reward_that_rose_and_stands_under_a_firm_beta_is_suspected():
    found = H31.sign(risen())
    assert found.level is Level.SUSPECT
    assert "does not change, and neither does the reward" in found.text


def test_a_reward_that_stands_at_the_end_of_learning_is_not_the_anchors():
    assert H31.sign(risen(beta=0.12)).level is Level.NOTE, "a light beta"
    assert H31.sign(risen(solved=True)).level is Level.NOTE, "nothing is left to learn"


@pytest.mark.parametrize("beta", [0.04, 5.0])
def test_a_light_beta_cannot_hold_and_a_heavy_one_is_h03s(beta):
    level = Level.OK if beta < 1 else Level.UNKNOWN
    assert H31.sign(held(plateau, beta=beta)).level is level


def test_without_a_kl_term_it_does_not_apply():
    assert "Does not apply" in H31.sign(held(plateau, beta=0.0)).text
    assert "Does not apply" in H31.probe(subject(kl_pull=lambda: None)).text


def test_the_probe_carries_the_pull_on_to_one_step():
    assert probed(0.001).level is Level.OK
    assert probed(0.02).level is Level.SUSPECT


def test_a_gradient_that_does_not_grow_with_the_distance_is_rounding():
    found = probed(0.4, growth=1.3)
    assert found.level is Level.UNKNOWN and "rounding" in found.text
    assert probed(0.04, growth=2.0).level is Level.OK, "with its rounding it is light"


def test_of_two_distances_the_lesser_pull_counts():
    assert probed(0.02, growth=40.0).measured == pytest.approx(2.0)
    assert probed(0.02, growth=6.0).measured == pytest.approx(1.2)


def test_a_rate_that_destroys_explains_the_pull_and_is_not_explained_by_it():
    step = SimpleNamespace(kl=20.0, kl_at_least=18.0, learning_rate=0.3, tokens=np.ones(4))
    rate = LearningRate().probe(subject(one_step=lambda: step, fitting_step=lambda: None))
    pull = probed(4.2)
    assert pull.level is rate.level is Level.SUSPECT
    assert [found.hypothesis for found in rank([pull, rate])] == ["H24", "H31"]
    assert explained_by([pull, rate]) == {"H31": "H24"}


def test_beta_is_compared_with_none():
    assert H31.experiment(RunConfig()) is None
    assert H31.experiment(RunConfig(kl_beta=0.04)).change == {"kl_beta": 0.0}
