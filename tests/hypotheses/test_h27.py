"""H27: gradients are clipped down to Adam's epsilon."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

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


@pytest.mark.parametrize(("at", "level"), [(1.0, Level.OK), (0.01, Level.NOTE), (0, Level.OK)])
def test_a_clip_alone_is_no_harm(at, level):
    assert H27.sign(clipped(at)).level is level


test_levels_of_the_sign = levels_of(H27.sign, {
    "elements of the size of epsilon": ("suspect", lambda: clipped(1e-7)),
    "a rising reward needs no explanation": ("note", lambda: clipped(1e-7, gain=0.5)),
    "another epsilon is heeded": ("note", lambda: clipped(1e-7, epsilon=1e-15)),
    "a healthy run is fine and few gradients say nothing (2)": ("unknown",
        lambda: clipped(1.0, norm=0.0)),
    "an epsilon of 0 swallows no gradient": ("ok", lambda: clipped(1e-7, epsilon=0.0)),
})  # fmt: skip

test_levels = levels_of(None, {
    "the probe compares a typical element with epsilon": ("ok", lambda: probed(1.0, 1.0)),
    "the probe compares a typical element with epsilon (2)": ("suspect", lambda: probed(1.0, 1e-7)),
    "the probe compares a typical element with epsilon (4)": ("unknown", lambda: probed(0.0, 1.0)),
    "the probe compares a typical element with epsilon (3)": ("suspect", lambda: probed(1e-7, 0.0)),
    "an epsilon of 0 swallows no gradient (2)": ("ok", lambda: probed(1.0, 1e-7, epsilon=0.0)),
    "an epsilon of 0 swallows no gradient (3)": ("suspect",
        lambda: probed(1.0, 1e-7, epsilon=None)),
})  # fmt: skip
