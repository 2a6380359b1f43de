"""H44 data-order."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.traces import healthy_rows, run_facts, trace_of

from flatline.errors import NotRecorded
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


def test_a_factor_for_hops_is_told():
    found = H.sign(run(by_step, reward=lambda row, n: n / 2 * round(row["reward"])))
    assert "1 at 2, 1.5 at 3, 2 at 4" in found.text


def test_a_run_that_was_sorted_on_request_is_suspected_even_where_it_saw_one_kind_only():
    sorted_run = {**run_facts(), "requested": {"order": "hops"}}
    found = H.sign(run(lambda row: 2, run=sorted_run))
    assert found.level is Level.SUSPECT
    assert "2 hops only" in found.text


def test_shuffled_data_is_ruled_out_and_data_of_one_kind_is_not_concerned():
    assert H.sign(run(shuffled, steps=30)).level is Level.OK
    assert "Does not apply" in H.sign(run(lambda row: 2)).text


def test_one_step_or_few_groups_say_nothing():
    assert H.sign(run(shuffled, steps=1)).level is Level.UNKNOWN
    with pytest.raises(NotRecorded):
        H.sign(trace_of([[0.0, 1.0]]))


def test_hops_that_are_partly_unknown_are_left_out():
    assert H.sign(run(lambda row: by_step(row) if row["group"] else None)).level is Level.SUSPECT


def test_the_probe_follows_the_sampler():
    step = np.repeat(np.arange(30), 8)
    assert H.probe(subject(step, 2.0 + step // 10)).level is Level.SUSPECT
    mixed = np.random.default_rng(0).integers(2, 5, len(step)).astype(float)
    assert H.probe(subject(step, mixed)).level is Level.OK
    asked = subject(step, np.full(len(step), 2.0), {"order": "hops"})
    assert H.probe(asked).level is Level.SUSPECT


def test_without_hops_the_probe_needs_rows_that_are_mixed():
    step = np.repeat(np.arange(30), 8)
    rows = np.arange(len(step))
    mixed = np.random.default_rng(0).permutation(rows)
    assert H.probe(subject(step, None, rows=mixed)).level is Level.OK
    for order in (rows, rows[::-1]):
        with pytest.raises(NotRecorded):
            H.probe(subject(step, None, rows=order))
    with pytest.raises(NotRecorded):
        H.probe(subject(step[:1], None, rows=rows[:1]))
