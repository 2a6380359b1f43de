"""H22: sequence weights take most of the gradient away."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
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


@pytest.mark.parametrize(
    ("mean", "level"), [(0.98, Level.OK), (0.7, Level.NOTE), (0.3, Level.SUSPECT)]
)
def test_the_logged_weight_tells_how_much_is_left(mean, level):
    assert H22.sign(logged(mean)).level is level


@pytest.mark.parametrize("correction", [True, None])
def test_weights_that_were_not_logged_are_not_made_up(correction):
    settings = {"engine": "vllm-server", "vllm_importance_sampling_correction": correction}
    with pytest.raises(NotRecorded, match="importance_sampling_ratio"):
        H22.sign(healthy_trace(steps=6, **settings))


def test_few_steps_say_nothing():
    rows = healthy_rows(steps=1)
    rows["steps"][1]["metrics"] = {METRIC: 0.1}
    assert H22.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.UNKNOWN


test_levels_of_the_sign = levels_of(H22.sign, {
    "a correction that is off weighs nothing": ("ok",
        lambda: healthy_trace(steps=6, **{"engine": "vllm-server",
            "vllm_importance_sampling_correction": False})),
})  # fmt: skip
