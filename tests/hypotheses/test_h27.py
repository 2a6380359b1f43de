"""H27: gradients are clipped down to Adam's epsilon."""

import numpy as np
import pytest
from tests.hypotheses.edited import subject
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.config import RunConfig
from flatline.hypotheses.base import Level
from flatline.hypotheses.h27_gradient_clipping import GradientClipping
from flatline.trace import Trace

H27 = GradientClipping()


def clipped(at, *, gain=0.0, norm=0.5, epsilon=None):
    rows = healthy_rows(steps=12, gain=gain)
    for row in rows["steps"][1:]:
        row["grad_norm"] = norm * (1 + 0.1 * (row["step"] % 3))
    run = run_facts(max_grad_norm=at)
    if epsilon is not None:
        run["trl"] = {"adam_epsilon": epsilon}
    return Trace.from_rows(run=run, **rows)


def probed(norm, at, epsilon=1e-8):
    census = subject(total_norm=norm, max_grad_norm=at, sizes=np.array([60, 40]), epsilon=epsilon)
    return H27.probe(subject(one_step=lambda: subject(gradients=census)))


def test_elements_of_the_size_of_epsilon_are_suspected():
    finding = H27.sign(clipped(1e-7))
    assert finding.level is Level.SUSPECT
    assert "100% of the steps are clipped" in finding.text


def test_a_rising_reward_needs_no_explanation():
    assert H27.sign(clipped(1e-7, gain=0.5)).level is Level.NOTE


@pytest.mark.parametrize(("at", "level"), [(1.0, Level.OK), (0.01, Level.NOTE), (0, Level.OK)])
def test_a_clip_alone_is_no_harm(at, level):
    assert H27.sign(clipped(at)).level is level


def test_another_epsilon_is_heeded():
    assert H27.sign(clipped(1e-7, epsilon=1e-15)).level is Level.NOTE


def test_an_epsilon_of_0_swallows_no_gradient():
    assert H27.sign(clipped(1e-7, epsilon=0.0)).level is Level.OK
    assert probed(1.0, 1e-7, epsilon=0.0).level is Level.OK
    assert probed(1.0, 1e-7, epsilon=None).level is Level.SUSPECT


def test_a_healthy_run_is_fine_and_few_gradients_say_nothing():
    assert H27.sign(healthy_trace(steps=5)).level is Level.OK
    assert H27.sign(clipped(1.0, norm=0.0)).level is Level.UNKNOWN


def test_the_probe_compares_a_typical_element_with_epsilon():
    assert probed(1.0, 1.0).level is Level.OK
    assert probed(1.0, 1e-7).level is Level.SUSPECT
    assert probed(1e-7, 0.0).level is Level.SUSPECT
    assert probed(0.0, 1.0).level is Level.UNKNOWN


def test_a_tight_clip_is_compared_with_the_usual_one():
    assert H27.experiment(RunConfig()) is None
    assert H27.experiment(RunConfig(max_grad_norm=0.0)) is None
    assert H27.experiment(RunConfig(max_grad_norm=0.01)).change == {"max_grad_norm": 1.0}
