"""H08 evaluation-mismatch."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h08_evaluation_mismatch import EvaluationMismatch
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
    return SimpleNamespace(heldout_path=lambda: found)


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


def test_without_an_early_evaluation_nothing_can_be_told():
    assert H.sign(run(0.0, at=50)).level is Level.UNKNOWN
    with pytest.raises(NotRecorded):
        H.sign(trace_of([[0.0, 1.0]]))


def test_a_few_prompts_are_too_little():
    rows = healthy_rows(steps=1, prompts=2)
    rows["steps"][0]["heldout_reward"] = 0.0
    assert H.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompts_equal": False}, "prompts are not the same"),
        ({"limits": {"max_turns": (2, 8)}}, "max_turns is 2 in training and 8 in evaluation"),
        ({"rescored": np.array([0.0, 0.0, 0.5, 1.0])}, "another reward"),
    ],
)
def test_the_probe_names_what_differs(changes, says):
    found = H.probe(path(**changes))
    assert found.level is Level.FAULT
    assert says in found.text


def test_the_probe_passes_equal_paths():
    assert H.probe(path()).level is Level.OK
    assert H.probe(path(problems=0)).level is Level.UNKNOWN
