"""H22: sequence weights take most of the gradient away."""

import numpy as np
import pytest
from tests.hypotheses.edited import rng_of
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h22_importance_weights import METRIC, ImportanceWeights
from flatline.trace import Trace

H22 = ImportanceWeights()


def logged(mean):
    rows = healthy_rows(steps=6)
    rng = np.random.default_rng(0)
    for row in rows["steps"][1:]:
        row["metrics"] = {METRIC: mean + rng.normal(0, 0.02)}
    return Trace.from_rows(run=run_facts(), **rows)


def with_vllm(noise):
    rows = healthy_rows(steps=6)
    for row in rows["tokens"]:
        row["sampler"] = np.asarray(row["old"]) + rng_of(row).normal(0, noise, len(row["ids"]))
    return Trace.from_rows(run=run_facts(engine="vllm-server"), **rows)


@pytest.mark.parametrize(
    ("mean", "level"), [(0.98, Level.OK), (0.7, Level.NOTE), (0.3, Level.SUSPECT)]
)
def test_the_logged_weight_tells_how_much_is_left(mean, level):
    assert H22.sign(logged(mean)).level is level


@pytest.mark.parametrize(("noise", "level"), [(0.02, Level.OK), (1.0, Level.SUSPECT)])
def test_without_it_the_weights_of_vllm_are_computed(noise, level):
    finding = H22.sign(with_vllm(noise))
    assert finding.level is level
    assert "effective share" in finding.text


def test_other_engines_have_no_such_correction():
    assert "Does not apply" in H22.sign(healthy_trace(steps=3)).text


def test_few_steps_say_nothing():
    rows = healthy_rows(steps=1)
    rows["steps"][1]["metrics"] = {METRIC: 0.1}
    assert H22.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.UNKNOWN
