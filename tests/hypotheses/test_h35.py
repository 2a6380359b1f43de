"""H35 length-bias."""

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts, trace_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h35_length_bias import LengthBias
from flatline.trace import Trace

H = LengthBias()


def run(*, length=lambda row: 20, power=0.0, gain=0.3, steps=12):
    rows = healthy_rows(steps=steps, gain=gain)
    for row in rows["rollouts"]:
        row["model_tokens"] = length(row)
        row["advantage"] *= (row["model_tokens"] / 20) ** power
    return Trace.from_rows(run=run_facts(), **rows)


def mixed(row):
    return 10 + 7 * (row["rollout"] % 5)


def test_advantages_that_carry_a_factor_of_length_are_a_fault():
    assert H.sign(run(length=mixed, power=2.0)).level is Level.FAULT
    short = H.sign(run(length=mixed, power=-1.0))
    assert short.level is Level.FAULT
    assert short.measured.high < -0.5


def test_a_factor_is_seen_on_one_batch_too():
    assert H.on_one_batch
    assert H.sign(run(length=mixed, power=2.0, steps=1)).level is Level.FAULT


def paid_for(sign):
    """Tokens that rollouts have beyond others: those that are paid more, or less."""
    return lambda row: 5 * (sign * row["advantage"] > 0)


def test_lengths_that_double_as_they_are_paid_while_the_reward_stays_are_suspected():
    longer, shorter = paid_for(1), paid_for(-1)
    growing = run(length=lambda row: 20 * row["step"] + longer(row), gain=0.0)
    assert H.sign(growing).level is Level.SUSPECT
    shrinking = run(length=lambda row: 200 // row["step"] + shorter(row), gain=0.0)
    assert H.sign(shrinking).level is Level.SUSPECT


def test_problems_that_get_harder_make_rollouts_longer_without_a_bias():
    wrong = paid_for(-1)
    for length in (lambda row: 20 * row["step"], lambda row: 20 * row["step"] + wrong(row)):
        assert H.sign(run(length=length, gain=-0.25)).level is Level.NOTE


def test_advantages_of_other_scalings_have_no_factor():
    rows = healthy_rows(steps=4)
    for row in rows["rollouts"]:
        row["model_tokens"] = mixed(row)
    rewards = np.array([row["reward"] for row in rows["rollouts"]]).reshape(-1, 8)
    plain = (rewards - rewards.mean(axis=1, keepdims=True)).ravel()
    for row, advantage in zip(rows["rollouts"], plain, strict=True):
        row["advantage"] = advantage
    assert H.sign(Trace.from_rows(run=run_facts(scale_rewards="none"), **rows)).level is Level.OK


test_levels_of_the_sign = levels_of(H.sign, {
    "rollouts of all lengths without a factor": ("ok", lambda: run(length=mixed)),
    "lengths that double while the reward rises are learning": ("ok",
        lambda: run(length=lambda row: 20 * row["step"] + row["rollout"] % 5, gain=0.5, steps=30)),
    "without lengths nothing is said": ("unknown",
        lambda: trace_of([[0.0, 1.0]] * 8, model_tokens=5)),
})  # fmt: skip
