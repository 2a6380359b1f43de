"""H31: the KL term holds the policy."""

import math

import pytest
from tests.hypotheses.edited import subject
from tests.traces import healthy_rows, run_facts

from flatline.config import RunConfig
from flatline.hypotheses.base import Level
from flatline.hypotheses.h31_kl_anchor import KlAnchor
from flatline.subject.step_records import KlPull
from flatline.trace import Trace

H31 = KlAnchor()


def held(kl_of_step, *, beta=0.5, gain=0.0, prompts=24):
    rows = healthy_rows(steps=24, prompts=prompts, gain=gain)
    for row in rows["steps"][1:]:
        row["kl"] = kl_of_step(row["step"])
    return Trace.from_rows(run=run_facts(beta=beta), **rows)


def plateau(step):
    return 0.01 * (1 - math.exp(-step)) * (1 + 0.02 * (step % 2))


def probed(kl, beta=0.5):
    pull = KlPull(beta=beta, scale=0.01, reward=1.0, kl=kl, cosine=-0.9)
    return H31.probe(subject(kl_pull=lambda: pull))


def test_a_kl_that_stands_still_under_a_flat_reward_is_suspected():
    assert H31.sign(held(plateau)).level is Level.SUSPECT


def test_a_kl_that_goes_on_or_a_reward_that_rises_leaves_a_note():
    assert H31.sign(held(lambda step: 0.002 * step)).level is Level.NOTE
    assert H31.sign(held(plateau, gain=0.5)).level is Level.NOTE


@pytest.mark.parametrize("beta", [0.04, 5.0])
def test_a_light_beta_cannot_hold_and_a_heavy_one_is_h03s(beta):
    assert H31.sign(held(plateau, beta=beta)).level is Level.OK


def test_without_a_kl_term_it_does_not_apply():
    assert "Does not apply" in H31.sign(held(plateau, beta=0.0)).text
    assert "Does not apply" in H31.probe(subject(kl_pull=lambda: None)).text


def test_the_probe_carries_the_pull_on_to_one_step():
    assert probed(0.001).level is Level.OK
    assert probed(0.02).level is Level.SUSPECT


def test_beta_is_compared_with_none():
    assert H31.experiment(RunConfig()) is None
    assert H31.experiment(RunConfig(kl_beta=0.04)).change == {"kl_beta": 0.0}
