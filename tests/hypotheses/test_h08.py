"""H08 evaluation-mismatch."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h08_evaluation_mismatch import EvaluationMismatch
from flatline.hypotheses.held_out import left_behind
from flatline.trace import Trace

H = EvaluationMismatch()


def run(before, *, steps=6, at=0):
    rows = healthy_rows(steps=steps, gain=0.0)
    rows["steps"][0] |= {"step": at, "heldout_reward": before}
    return Trace.from_rows(run=run_facts(), **rows)


def path(**changes):
    reward = np.array([0.0, 1.0, 0.5, 1.0])
    facts = {
        "problems": 4,
        "prompts_equal": True,
        "same_completion": 1.0,
        "training_reward": reward,
        "heldout_reward": reward,
        "rescored": reward,
        "limits": {},
    }
    found = SimpleNamespace(**{**facts, **changes})
    return SimpleNamespace(settings={}, heldout_path=lambda: found)


@pytest.mark.parametrize("before", [0.99, -0.2])
def test_a_start_on_which_both_disagree_is_suspected_in_either_direction(before):
    found = H.sign(run(before))
    assert found.level is Level.SUSPECT
    assert found.measured.n == 24


def test_a_healthy_run_agrees_at_the_start_whatever_comes_later():
    assert H.sign(healthy_trace(steps=20)).level is Level.OK
    late = healthy_rows(steps=20)
    late["steps"][-1]["heldout_reward"] = 0.0
    assert H.sign(Trace.from_rows(run=run_facts(), **late)).level is Level.OK


def test_a_few_prompts_are_too_little():
    rows = healthy_rows(steps=1, prompts=2)
    rows["steps"][0]["heldout_reward"] = 0.0
    assert H.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.UNKNOWN


@pytest.mark.parametrize(("changes", "says"), [
    ({"prompts_equal": False}, "prompts are not the same"),
    ({"limits": {"max_turns": (2, 8)}}, "max_turns is 2 in training and 8 in evaluation"),
    ({"rescored": np.array([0.0, 0.0, 0.5, 1.0])}, "another reward"),
])  # fmt: skip
def test_the_probe_names_what_differs(changes, says):
    found = H.probe(path(**changes))
    assert found.level is Level.FAULT
    assert says in found.text


def log_of(heldout, gain):
    """A log whose reward rises by `gain`, with an evaluation every sixth row."""
    rows = [
        {"step": at + 1, "reward": 0.5 + gain * at / 59 + 0.02 * (-1) ** at} for at in range(60)
    ]
    for at, score in enumerate(heldout):
        rows[6 * at]["heldout_reward"] = score
    return Trace.from_rows(run={"source": "import:csv", "settings": {}}, steps=rows)


STILL = (0.31, 0.33, 0.3, 0.32, 0.31, 0.33, 0.3, 0.32)


def test_an_evaluation_that_does_not_follow_a_rise_is_a_note_that_points_at_it():
    finding = H.sign(log_of(STILL, gain=0.4))
    assert (finding.level, finding.points_at_cause) == (Level.NOTE, True)


@pytest.mark.parametrize(("heldout", "gain"), [
    ([0.3 + 0.05 * at for at in range(8)], 0.4),
    (STILL, 0.0), (STILL[:4], 0.4),
], ids=["it follows", "nothing rises", "too few evaluations"])  # fmt: skip
def test_nothing_is_said_of_an_evaluation_that_follows_or_has_nothing_to(heldout, gain):
    assert left_behind(log_of(heldout, gain)) is None


CLIMBING = (0.465, 0.494, 0.523, 0.544, 0.533, 0.569)


@pytest.mark.parametrize("heldout", [
    CLIMBING,
    (0.36, 0.52, 0.44, 0.36, 0.48, 0.44, 0.52, 0.4),
], ids=["a few that rise all along", "too noisy to exclude half the gain"])  # fmt: skip
def test_an_interval_that_reaches_to_nothing_is_no_proof_that_evaluation_does_not_follow(heldout):
    assert left_behind(log_of(heldout, gain=0.2)) is None


def test_an_evaluation_that_may_gain_less_than_half_of_the_training_does_not_follow():
    little = [0.31 + 0.004 * at + 0.01 * (-1) ** at for at in range(8)]
    found = left_behind(log_of(little, gain=0.4))
    assert found is not None
    assert found.evaluated.value < 0.5 * found.trained.value


def test_both_gains_are_of_the_same_stretch_of_the_run():
    found = left_behind(log_of(STILL, gain=0.4))
    assert found is not None
    assert found.trained.value == pytest.approx(0.4 * 24 / 59, abs=0.03)


test_levels_of_the_probe = levels_of(H.probe, {
    "the probe passes equal paths": ("ok", lambda: path()),
    "the probe passes equal paths (2)": ("unknown", lambda: path(problems=0)),
})  # fmt: skip


test_levels_of_the_sign = levels_of(H.sign, {
    "without an early evaluation nothing can be told": ("unknown", lambda: run(0.0, at=50)),
})  # fmt: skip
