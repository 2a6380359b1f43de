"""H45 no-headroom."""

from types import SimpleNamespace

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h45_no_headroom import NoHeadroom
from flatline.trace import Trace

H = NoHeadroom()


def run(right, *, steps=12, answer="wrong", finish="answered", heldout=None, reward=None):
    """A run whose rollouts are right where `right` says so."""
    rows = healthy_rows(steps=steps, gain=0.0)
    for row in rows["rollouts"]:
        correct = float(right(row))
        row["parts"] = {"exact_match": correct}
        row["completion"] = f"<answer>{'right' if correct else answer}</answer>"
        row |= {"reward": correct if reward is None else reward, "finish": finish}
    for row in rows["steps"]:
        row["heldout_reward"] = heldout
    return Trace.from_rows(run=run_facts(), **rows)


def never(row):
    return False


def test_a_policy_that_is_never_right_is_suspected_and_no_limit_explains_it():
    found = H.sign(run(never))
    assert found.level is Level.SUSPECT
    assert found.proven


def test_a_policy_that_is_never_right_because_it_is_cut_off_may_be_explained():
    found = H.sign(run(never, finish="turn_length"))
    assert found.level is Level.SUSPECT
    assert not found.proven


def test_a_policy_that_is_always_right_is_suspected():
    found = H.sign(run(lambda row: True))
    assert found.level is Level.SUSPECT
    assert found.measured.low > 0.9


def graded(rows):
    """A run whose part is a share, such as of unit tests."""
    for row, part in zip(rows["rollouts"], np.random.default_rng(0).beta(2, 3, 768), strict=True):
        row["parts"] = {"accuracy": part}
        row |= {"reward": part, "completion": None, "gold": None}
    return Trace.from_rows(run=run_facts(correct="accuracy"), **rows)


def probed(right):
    """What the probe says of a policy that solves the problems `right` says, and how many it
    played."""
    played = []

    def play(first, last):
        played.extend(right[first:last])
        return np.array(right[first:last], dtype=float)

    subject = SimpleNamespace(trace=run(never, steps=1), ours=True, solved=play)
    return H.probe(subject), len(played)


def test_half_of_the_problems_will_do_where_they_rule_it_out():
    found, played = probed([1, 0, 0] * 22)
    assert (found.level, played) == (Level.OK, 32)


def test_an_alarm_takes_all_of_the_problems():
    found, played = probed([0] * 64)
    assert (found.level, played) == (Level.SUSPECT, 64)
    late, _ = probed([0] * 32 + [1] * 32)
    assert late.level is Level.OK


def test_a_small_dataset_is_played_once():
    found, played = probed([0] * 20)
    assert (found.level, played) == (Level.UNKNOWN, 20)


test_levels_of_the_sign = levels_of(H.sign, {
    "a part that says how right is no ceiling where it is above 0": ("ok",
        lambda: graded(healthy_rows(steps=12, gain=0.0))),
    "a best of group that is hardly ahead": ("note", lambda: run(lambda row: row["group"] % 2)),
    "few prompts say nothing and rewards alone neither": ("unknown", lambda: run(never, steps=1)),
    "right answers that the reward does not read are left to h39": ("no suspect",
        lambda: run(never, answer="right", reward=0.0)),
    "a policy that can do it in evaluation is left to h08": ("no suspect",
        lambda: run(never, heldout=0.6)),
})  # fmt: skip


test_levels_of_the_probe = levels_of(H.probe, {
    "the probe of a trainer that is not ours says what the batch says": ("unknown",
        lambda: SimpleNamespace(trace=run(never, steps=1), ours=False)),
})  # fmt: skip
