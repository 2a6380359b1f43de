"""H32 zero-variance-groups."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_trace, rollout_rows, run_facts, trace_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h32_zero_variance_groups import ZeroVarianceGroups
from flatline.trace import Trace

H = ZeroVarianceGroups()


def run(dead_at, steps=10, *, level=lambda step: 1.0):
    """Eight groups a step, of which the share `dead_at(step)` has equal rewards."""
    rows = []
    for step in range(1, steps + 1):
        dead = round(8 * dead_at(step))
        live = [[0.0, level(step)] * 4] * (8 - dead)
        rows += rollout_rows([[level(step)] * 8] * dead + live, step=step)
    return Trace.from_rows(run=run_facts(), rollouts=rows)


def oracle(ties, played=40, dead=0.0):
    cases = [SimpleNamespace(problem="p", script="empty", reward=1.0, gold_reward=1.0)] * ties
    found = SimpleNamespace(not_below_gold=cases, played=played)
    return SimpleNamespace(oracle=lambda: found, trace=run(lambda step: dead, steps=1))


def test_mostly_dead_groups_are_suspected():
    found = H.sign(run(lambda step: 7 / 8))
    assert found.level is Level.SUSPECT
    assert found.measured.n == 80


@pytest.mark.parametrize(("scaling", "level"), [("group", Level.SUSPECT), ("batch", Level.UNKNOWN)])
def test_a_log_without_rollouts_is_believed_unless_it_speaks_of_the_batch(scaling, level):
    steps = [{"step": step, "reward": 0.5, "zero_std_share": 0.9} for step in range(1, 21)]
    assert H.sign(Trace.from_rows(run=run_facts(scale_rewards=scaling), steps=steps)).level is level


test_levels_of_the_sign = levels_of(H.sign, {
    "a run that only ends with dead groups has worn its prompts out": ("note",
        lambda: run(lambda step: 0.0 if step < 3 else 1.0, steps=30)),
    "half dead is noted and a healthy run is ruled out (3)": ("ok",
        lambda: healthy_trace(generations=4, steps=20)),
    "half dead is noted and a healthy run is ruled out": ("note", lambda: run(lambda step: 5 / 8)),
    "equal rewards everywhere are told with their value": ("suspect",
        lambda: run(lambda step: 1.0, level=lambda step: 0.5)),
    "rollouts that no function judged are told beside equal rewards": ("suspect",
        lambda: trace_of([[1.0, 1.0, np.nan, np.nan] * 2] * 8)),
    "few groups are too little": ("unknown", lambda: trace_of([[1.0] * 8, [0.0, 1.0] * 4])),
    "few groups are too little (2)": ("unknown", lambda: trace_of([[1.0], [0.0]])),
    "few groups are too little (3)": ("unknown", lambda: trace_of([[np.nan] * 4])),
    "crumbs are not equal": ("ok", lambda: trace_of([[0.5 + 0.001 * at for at in range(8)]] * 40)),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "the probe faults a reward that pays wrong plays like gold": ("fault",
        lambda: oracle(30, dead=7 / 8)),
    "the probe believes groups that differ all the same": ("ok", lambda: oracle(30, dead=0.0)),
    "the probe otherwise reads the batch": ("ok", lambda: oracle(0)),
})  # fmt: skip
