"""H29: the clip on the ratio stops most of the update."""

import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.config import RunConfig
from flatline.hypotheses.base import Level
from flatline.hypotheses.h29_ratio_clipping import RatioClipping
from flatline.trace import Trace

H29 = RatioClipping()


def clipping(share, *, gain=0.0):
    """Every second step is a second pass."""
    rows = healthy_rows(steps=12, gain=gain)
    for row in rows["steps"][1:]:
        second = row["step"] % 2 == 0
        row |= {"ratio_max": 0.5 * second, "clip_share": second * (share + row["step"] * 1e-3)}
    return Trace.from_rows(run=run_facts(num_iterations=2), **rows)


@pytest.mark.parametrize(
    ("share", "level"), [(0.005, Level.OK), (0.07, Level.NOTE), (0.4, Level.SUSPECT)]
)
def test_the_share_of_clipped_tokens_decides_where_there_is_a_ratio(share, level):
    finding = H29.sign(clipping(share))
    assert finding.level is level
    assert "6 steps" in finding.text


def test_a_rising_reward_needs_no_explanation():
    assert H29.sign(clipping(0.4, gain=0.5)).level is Level.NOTE


def test_with_one_update_per_batch_the_clip_never_acts():
    assert "Does not apply" in H29.sign(healthy_trace(steps=4)).text


def test_a_narrow_clip_is_compared_with_the_usual_one():
    assert H29.experiment(RunConfig(epsilon=0.01)) is None, "with one pass it changes nothing"
    config = RunConfig(epsilon=0.01, num_iterations=2)
    assert H29.experiment(config).change == {"epsilon": 0.2}
    assert H29.experiment(RunConfig(fault="clip-tight")).factor == "fault"
