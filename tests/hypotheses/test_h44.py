"""H44 data-order."""

from types import SimpleNamespace

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h44_data_order import DataOrder
from flatline.trace import Trace

H = DataOrder()


def run(hops, *, steps=12, run=None, reward=lambda row, n: row["reward"]):
    rows = healthy_rows(steps=steps)
    for row in rows["rollouts"]:
        row["hops"] = hops(row)
        row["reward"] = reward(row, row["hops"])
    return Trace.from_rows(run=run or run_facts(), **rows)


def by_step(row):
    return 2 + (row["step"] - 1) // 4


def shuffled(row):
    return 2 + hash((row["step"], row["group"] * 7)) % 3


def subject(step, hops, requested=None, rows=None):
    order = SimpleNamespace(step_N=np.array(step), hops_N=hops, prompt_N=rows)
    return SimpleNamespace(
        settings={"max_steps": 30}, requested=requested, data_order=lambda steps: order
    )


def test_hops_that_grow_with_the_step_are_suspected():
    found = H.sign(run(by_step))
    assert found.level is Level.SUSPECT
    assert found.measured.low > 0.5


def test_the_probe_follows_the_sampler():
    step = np.repeat(np.arange(30), 8)
    assert H.probe(subject(step, 2.0 + step // 10)).level is Level.SUSPECT
    mixed = np.random.default_rng(0).integers(2, 5, len(step)).astype(float)
    assert H.probe(subject(step, mixed)).level is Level.OK
    assert H.probe(subject(step, np.full(len(step), 2.0), {"order": "hops"})).level is Level.SUSPECT


test_levels_of_the_sign = levels_of(H.sign, {
    "shuffled data is ruled out and data of one kind is not concerned": ("ok",
        lambda: run(shuffled, steps=30)),
    "shuffled data is ruled out and data of one kind is not concerned (2)": ("ok",
        lambda: run(lambda row: 2)),
    "one step or few groups": ("unknown", lambda: run(shuffled, steps=1)),
    "hops that are partly unknown are left out": ("suspect",
        lambda: run(lambda row: by_step(row) if row["group"] else None)),
    "a run that was sorted on request is suspected even where it saw one kind only": ("suspect",
        lambda: run(lambda row: 2, run={**run_facts(), "requested": {"order": "hops"}})),
})  # fmt: skip

STEP, ROWS = np.repeat(np.arange(30), 8), np.arange(240)

test_levels_of_the_probe_without_hops = levels_of(H.probe, {
    "rows that are mixed": ("ok",
        lambda: subject(STEP, None, rows=np.random.default_rng(0).permutation(ROWS))),
    "rows in their order": ("not recorded", lambda: subject(STEP, None, rows=ROWS)),
    "rows in the opposite order": ("not recorded", lambda: subject(STEP, None, rows=ROWS[::-1])),
    "one row": ("not recorded", lambda: subject(STEP[:1], None, rows=ROWS[:1])),
})  # fmt: skip
