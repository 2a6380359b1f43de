"""H17: rollouts name weights that are too old."""

import numpy as np
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

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
    assert H17.sign(versions(lambda step, _: (step - 1) // 4 * 4)).level is Level.FAULT


def test_several_updates_from_one_generation_are_behind_by_design():
    trace = versions(lambda step, _: (step - 1) // 4 * 4, steps_per_generation=4)
    assert H17.sign(trace).level is Level.OK


def in_a_watched_loop(of_step):
    trace = versions(of_step)
    trace.run["source"] = "watch"
    return H17.sign(trace)


def test_a_few_late_rollouts_are_noted():
    assert H17.sign(versions(lambda step, k: step - 1 - (k == 0))).level is Level.NOTE


def test_a_run_that_samples_once_is_suspected_from_its_settings():
    found = H17.sign(versions(lambda step, _: 0, num_iterations=100, max_steps=8))
    assert found.level is Level.SUSPECT
    twice = versions(lambda step, _: step - 1, num_iterations=2, max_steps=8)
    assert H17.sign(twice).level is Level.OK
    short = versions(lambda step, _: step - 1, num_iterations=4, max_steps=3)
    assert H17.sign(short).level is not Level.SUSPECT, "somebody only tries it out"


test_levels = levels_of(None, {
    "minibatches of one generation of a watched loop are not behind": ("ok",
        lambda: in_a_watched_loop(lambda step, _: (step - 1) // 4 * 4)),
    "a watched loop that trains the generation before is behind": ("fault",
        lambda: in_a_watched_loop(lambda step, _: max(0, step - 3))),
    "the probe wants the next step to be named (3)": ("unknown", lambda: replayed([])),
    "the probe wants the next step to be named": ("ok", lambda: replayed([1, 1])),
    "the probe wants the next step to be named (2)": ("fault", lambda: replayed([0, 0])),
})  # fmt: skip
