"""H17: rollouts name weights that are too old."""

import numpy as np
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

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


def in_a_watched_loop(of_step):
    trace = versions(of_step)
    trace.run["source"] = "watch"
    return H17.sign(trace)


test_levels = levels_of(None, {
    "minibatches of one generation of a watched loop are not behind": ("ok",
        lambda: in_a_watched_loop(lambda step, _: (step - 1) // 4 * 4)),
    "a watched loop that trains the generation before is behind": ("fault",
        lambda: in_a_watched_loop(lambda step, _: max(0, step - 3))),
    "the probe wants the next step to be named (3)": ("unknown", lambda: replayed([])),
    "the probe wants the next step to be named": ("ok", lambda: replayed([1, 1])),
    "the probe wants the next step to be named (2)": ("fault", lambda: replayed([0, 0])),
})  # fmt: skip


test_levels_of_the_sign = levels_of(H17.sign, {
    "weights that arrive every fourth step": ("fault",
        lambda: versions(lambda step, _: (step - 1) // 4 * 4)),
    "several updates from one generation are behind by design": ("ok",
        lambda: versions(lambda step, _: (step - 1) // 4 * 4, steps_per_generation=4)),
    "a few late rollouts": ("note", lambda: versions(lambda step, k: step - 1 - (k == 0))),
    "a run that samples once is suspected from its settings": ("suspect",
        lambda: versions(lambda step, _: 0, num_iterations=100, max_steps=8)),
    "a run that samples once is suspected from its settings (2)": ("ok",
        lambda: versions(lambda step, _: step - 1, num_iterations=2, max_steps=8)),
    "somebody only tries it out": ("no suspect",
        lambda: versions(lambda step, _: step - 1, num_iterations=4, max_steps=3)),
})  # fmt: skip
