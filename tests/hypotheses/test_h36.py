"""H36 turn-credit."""

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts, trace_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h36_turn_credit import TurnCredit
from flatline.trace import Trace

H = TurnCredit()


def run(pay, *, steps=12, noise=0.0):
    """A run in which those who found all are right in 8 of 10 cases, the others in 3."""
    rows = healthy_rows(steps=steps)
    rng = np.random.default_rng(0)
    for row in rows["rollouts"]:
        found = rng.random() < 0.5
        right = rng.random() < (0.8 if found else 0.3)
        row |= {"supporting": 2, "supporting_seen": 2 if found else 1}
        row["parts"] = {"exact_match": float(right)}
        row["reward"] = pay(found, right) + noise * rng.normal()
    return Trace.from_rows(run=run_facts(), **rows)


def test_completions_of_one_turn_have_no_turns_to_credit():
    rows = healthy_rows(steps=2)
    for row in rows["rollouts"]:
        row["turns"] = 1
    assert H.sign(Trace.from_rows(run=run_facts(tools=0), **rows)).level is Level.OK
    rows["rollouts"][0]["turns"] = 2
    assert "Does not apply" not in H.sign(Trace.from_rows(run=run_facts(tools=0), **rows)).text


def test_a_part_of_our_own_tasks_can_say_what_was_found():
    rng = np.random.default_rng(0)
    progress = rng.random((40, 8)).round()
    right = (rng.random((40, 8)) < 0.3 + 0.5 * progress).astype(float)
    parts = [
        {"exact_match": r, "progress": p, "combined": r - 0.6 * p}
        for r, p in zip(right.ravel(), progress.ravel(), strict=True)
    ]
    assert H.sign(trace_of((right - 0.6 * progress).tolist(), parts=parts)).level is Level.SUSPECT


test_levels_of_the_sign = levels_of(H.sign, {
    "finding that is punished as much as it helps": ("suspect",
        lambda: run(lambda found, right: right - 0.6 * found)),
    "finding that pays through the answer": ("ok", lambda: run(lambda found, right: float(right))),
    "a reward that does not follow the answer either is left to h05": ("unknown",
        lambda: run(lambda found, right: 0.0, noise=1.0)),
    "few groups": ("unknown", lambda: run(lambda found, right: right - 0.4 * found, steps=1)),
})  # fmt: skip
