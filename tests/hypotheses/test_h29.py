"""H29: the clip on the ratio stops most of the update."""

import math
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h29_ratio_clipping import RatioClipping
from flatline.live.records import OneStep
from flatline.trace import Trace

H29 = RatioClipping()


def clipping(share, *, gain=0.0, **settings):
    """Every second step is a second pass."""
    rows = healthy_rows(steps=12, gain=gain)
    for row in rows["steps"][1:]:
        second = row["step"] % 2 == 0
        row |= {"ratio_max": 0.5 * second, "clip_share": second * (share + row["step"] * 1e-3)}
    return Trace.from_rows(run=run_facts(num_iterations=2, **settings), **rows)


@pytest.mark.parametrize(
    ("share", "level"), [(0.005, Level.OK), (0.07, Level.NOTE), (0.4, Level.SUSPECT)]
)
def test_the_share_of_clipped_tokens_decides_where_there_is_a_ratio(share, level):
    assert H29.sign(clipping(share)).level is level


def probed(share, **settings):
    given = {"num_iterations": 2, "epsilon": 3e-4, "importance_sampling_level": "token"}
    return H29.probe(
        subject(
            settings={**given, **settings},
            epsilon_high=0.4,
            one_step=lambda: SimpleNamespace(
                stopped=lambda low, high: share, tokens=np.array([4, 4])
            ),
        )
    )


@pytest.mark.parametrize(
    ("share", "level"), [(0.15, Level.OK), (0.6, Level.NOTE), (0.9, Level.SUSPECT)]
)
def test_where_whole_sequences_are_clipped_many_are_usual(share, level):
    finding = H29.sign(clipping(share, epsilon=0.0003, importance_sampling_level="sequence"))
    assert finding.level is level


def test_the_probe_has_nothing_to_ask_of_one_update_per_batch():
    found = probed(0.9, num_iterations=1)
    assert found.level is Level.OK and found.excluded_by == "num_iterations"


@pytest.mark.parametrize(("share", "settings", "level"), [
    (0.9, {"epsilon": 0.2}, Level.UNKNOWN),
    (0.1, {"epsilon": 0.2}, Level.OK),
    (0.1, {"epsilon": None}, Level.UNKNOWN),
    (0.1, {"importance_sampling_level": "sequence"}, Level.UNKNOWN),
])  # fmt: skip
def test_the_probe_of_a_usual_clip_rules_out_and_does_not_accuse(share, settings, level):
    assert probed(share, **settings).level is level


def test_steps_without_a_ratio_are_not_steps_whose_ratio_is_one():
    rows = healthy_rows(steps=6)
    for row in rows["steps"]:
        row["ratio_max"] = math.nan
    assert H29.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.UNKNOWN


def a_step(change, advantage, probability):
    filled = dict.fromkeys((field.name for field in fields(OneStep)), 0)
    arrays = (np.array(values) for values in (change, advantage, probability))
    change_T, advantage_T, p_T = arrays
    return OneStep(
        **{**filled, "change_T": change_T, "advantage_T": advantage_T, "room_T": 1 - p_T}
    )


def test_tokens_beyond_the_clip_in_the_direction_of_their_advantage_are_stopped():
    step = a_step([0.3, -0.3, 0.3, -0.3], [1.0, 1.0, -1.0, -1.0], [0.5, 0.5, 0.5, 0.5])
    assert step.stopped(0.2, 0.2) == 0.5
    assert step.stopped(0.2, 0.5) == 0.25, "up is clipped later than down"
    assert step.stopped(0.5, 0.5) == 0.0


def test_a_token_that_is_certain_does_not_count():
    assert a_step([0.3, 0.0], [1.0, 1.0], [0.5, 1.0]).stopped(0.2, 0.2) == 1.0
    assert math.isnan(a_step([0.3], [0.0], [0.5]).stopped(0.2, 0.2))


test_levels = levels_of(None, {
    "the probe asks how much of the second update a narrow clip stops": ("suspect",
        lambda: probed(0.6)),
    "the probe asks how much of the second update a narrow clip stops (2)": ("ok",
        lambda: probed(0.1)),
    "the probe asks how much of the second update a narrow clip stops (3)": ("unknown",
        lambda: probed(math.nan)),
    "one generation for several updates is probed as well": ("suspect",
        lambda: probed(0.6, num_iterations=1, steps_per_generation=8)),
})  # fmt: skip


test_levels_of_the_sign = levels_of(H29.sign, {
    "a rising reward needs no explanation": ("note", lambda: clipping(0.4, gain=0.5)),
    "a clip that nobody means is suspected even where the reward rises": ("suspect",
        lambda: clipping(0.4, gain=0.5, **{"epsilon": 0.0003,
            "importance_sampling_level": "token"})),
    "a clip that nobody means is suspected even where the reward rises (2)": ("note",
        lambda: clipping(0.07, gain=0.5, **{"epsilon": 0.0003,
            "importance_sampling_level": "token"})),
    "a clip that nobody means is suspected even where the reward rises (3)": ("note",
        lambda: clipping(0.6, gain=0.5, **{**{"epsilon": 0.0003,
            "importance_sampling_level": "token"},
            "importance_sampling_level": "sequence"})),
})  # fmt: skip
