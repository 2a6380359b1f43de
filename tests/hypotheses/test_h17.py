"""H17: rollouts name weights that are too old."""

import numpy as np
import pytest
from tests.hypotheses.edited import subject, without
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h17_stale_sampler import StaleSampler
from flatline.live.records import Replay
from flatline.trace import Trace

H17 = StaleSampler()


def versions(of_step, **settings):
    rows = healthy_rows(steps=8)
    for row in rows["rollouts"]:
        row["weight_version"] = of_step(row["step"], row["rollout"])
    return Trace.from_rows(run=run_facts(**settings), **rows)


def replayed(named, expected=1):
    again = Replay(
        versions=np.array(named, dtype=np.int64),
        version_expected=expected,
    )
    return H17.probe(subject(play_again=lambda: again))


def test_weights_that_arrive_every_fourth_step_are_a_fault():
    finding = H17.sign(versions(lambda step, _: (step - 1) // 4 * 4))
    assert finding.level is Level.FAULT
    assert "3 at most" in finding.text


def test_a_healthy_run_is_never_behind():
    assert H17.sign(healthy_trace(steps=4)).level is Level.OK


def test_several_updates_from_one_generation_are_behind_by_design():
    trace = versions(lambda step, _: (step - 1) // 4 * 4, steps_per_generation=4)
    assert H17.sign(trace).level is Level.OK


def in_a_watched_loop(of_step):
    trace = versions(of_step)
    trace.run["source"] = "watch"
    return H17.sign(trace)


def test_minibatches_of_one_generation_of_a_watched_loop_are_not_behind():
    assert in_a_watched_loop(lambda step, _: (step - 1) // 4 * 4).level is Level.OK


def test_a_watched_loop_that_trains_the_generation_before_is_behind():
    assert in_a_watched_loop(lambda step, _: max(0, step - 3)).level is Level.FAULT


def test_a_few_late_rollouts_are_noted():
    assert H17.sign(versions(lambda step, k: step - 1 - (k == 0))).level is Level.NOTE


def test_short_runs_and_runs_without_versions_cannot_be_told():
    assert H17.sign(healthy_trace(steps=2)).level is Level.UNKNOWN
    with pytest.raises(NotRecorded):
        H17.sign(without("rollouts", "weight_version"))


def test_the_probe_wants_the_next_step_to_be_named():
    assert replayed([1, 1]).level is Level.OK
    assert replayed([0, 0]).level is Level.FAULT
    assert replayed([]).level is Level.UNKNOWN


def test_a_run_that_samples_once_is_suspected_from_its_settings():
    found = H17.sign(versions(lambda step, _: 0, num_iterations=100, max_steps=8))
    assert found.level is Level.SUSPECT and "`num_iterations` 100" in found.text
    twice = versions(lambda step, _: step - 1, num_iterations=2, max_steps=8)
    assert H17.sign(twice).level is Level.OK
    short = versions(lambda step, _: step - 1, num_iterations=4, max_steps=3)
    assert H17.sign(short).level is not Level.SUSPECT, "somebody only tries it out"
