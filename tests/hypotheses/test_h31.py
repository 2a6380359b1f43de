"""H31: the KL term holds the policy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

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


def risen(*, beta=0.5, solved=False):
    """A reward that rises in the first third of the run and stands from there on."""
    rows = healthy_rows(steps=24, prompts=48, gain=0.0)
    for row in rows["steps"][1:]:
        row["kl"] = plateau(row["step"])
    for row in rows["rollouts"]:
        early = row["step"] <= 8
        row["reward"] = 0.2 * row["reward"] if early else 1.0 if solved else row["reward"]
    return Trace.from_rows(run=run_facts(beta=beta), **rows)


@pytest.mark.parametrize("beta", [0.04, 5.0])
def test_a_light_beta_cannot_hold_and_a_heavy_one_is_h03s(beta):
    assert H31.sign(held(plateau, beta=beta)).level is (Level.OK if beta < 1 else Level.UNKNOWN)


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


test_levels_of_the_sign = levels_of(H31.sign, {
    "a kl that stands still under a flat reward": ("suspect", lambda: held(plateau)),
    "a kl that goes on or a reward that rises leaves a note": ("note",
        lambda: held(lambda step: 0.002 * step)),
    "a kl that goes on or a reward that rises leaves a note (2)": ("note",
        lambda: held(plateau, gain=0.5)),
    "a reward that rose and stands under a firm beta": ("suspect", lambda: risen()),
    "a reward that stands at the end of learning is not the anchors": ("note",
        lambda: risen(beta=0.12)),
    "nothing is left to learn": ("note", lambda: risen(solved=True)),
    "without a kl term it does not apply": ("ok", lambda: held(plateau, beta=0.0)),
})  # fmt: skip

test_levels = levels_of(None, {
    "the probe carries the pull on to one step": ("ok", lambda: probed(0.001)),
    "the probe carries the pull on to one step (2)": ("suspect", lambda: probed(0.02)),
})  # fmt: skip


test_levels_of_the_probe = levels_of(H31.probe, {
    "without a kl term it does not apply (2)": ("ok", lambda: subject(kl_pull=lambda: None)),
})  # fmt: skip
