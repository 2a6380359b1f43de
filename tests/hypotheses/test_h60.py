"""H60 processes-apart."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.hypotheses.edited import altered, levels_of
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h60_processes_apart import ProcessesApart
from flatline.live.step_records import Between
from flatline.trace import Trace

H = ProcessesApart()
HEALTHY = Between(
    processes=2,
    prompts=((("a", "a"), ("c", "c"), ("e", "e")), (("b", "b"), ("d", "d"), ("f", "f"))),
    group=2,
    broken=(),
    misplaced=0,
    advantage_off=1e-6,
    differing=(),
    lengths=(1.0, 1.0),
    cosines=(1.0, 1.0),
    length_limit=1e-3,
    cosine_limit=1e-5,
)


def probed(**changes):
    found = replace(HEALTHY, **changes)
    return H.probe(SimpleNamespace(between=lambda: found))


def split_over(processes, name=lambda row: row["prompt_id"]):
    """The rollouts of each step, group by group, in as many processes."""
    rows = healthy_rows(steps=3)
    for row in rows["rollouts"]:
        row["rank"] = row["group"] % processes
        row["prompt_id"] = name(row)
    return Trace.from_rows(run=run_facts(), **rows)


def test_one_process_has_nobody_to_differ_from():
    assert H.sign(split_over(1)).text == "Does not apply: one process trains."


@pytest.mark.parametrize(("changes", "words"), [
    ({"prompts": (HEALTHY.prompts[0],) * 2}, "the same 3 prompts"),
    ({"broken": (1,)}, "are not one prompt"),
    ({"misplaced": 4}, "not in their order"),
    ({"advantage_off": 0.7}, "not that of its reward"),
    ({"differing": ("lm_head.weight",)}, "1 weights are not the same"),
    ({"lengths": (2.0, 2.0)}, "multiplied by the number of processes"),
    ({"lengths": (0.5, 0.5)}, "divided by the number of processes"),
    ({"cosines": (1.0, 0.4)}, "The gradient of process 1"),
])  # fmt: skip
def test_each_way_to_be_apart_is_a_fault_of_its_own(changes, words):
    found = probed(**changes)
    assert found.level is Level.FAULT and words in found.text


def test_without_a_gradient_it_cannot_be_told_whether_they_step_together():
    found = probed(lengths=None, cosines=None)
    assert found.level is Level.UNKNOWN and found.needs


def test_a_gradient_of_zero_says_nothing():
    nan = float("nan")
    assert probed(lengths=(nan, nan), cosines=(nan, nan)).level is Level.UNKNOWN


test_levels_of_the_sign = levels_of(H.sign, {
    "processes that draw other prompts": ("ok", lambda: split_over(2)),
    "processes that draw the same prompts": ("fault",
        lambda: split_over(2, lambda row: f"{row['step']}-{row['group'] // 2}")),
    "one prompt for all groups": ("ok", lambda: split_over(2, lambda _: "the only one")),
    "groups that are split over processes share their prompt": ("unknown",
        lambda: altered("rollouts", lambda row: row.update(rank=row["rollout"] % 2), steps=3)),
})  # fmt: skip

test_levels = levels_of(None, {
    "processes in step": ("ok", lambda: probed()),
})  # fmt: skip
