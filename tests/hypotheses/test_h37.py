"""H37 format-dominates."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h37_format_dominates import FormatDominates

H = FormatDominates()


def run(weight, *, groups=40, form=0.7, right=0.5, name="format"):
    rng = np.random.default_rng(0)
    tidy = (rng.random((groups, 8)) < form).astype(float)
    correct = (rng.random((groups, 8)) < right).astype(float)
    parts = [
        {"exact_match": c, name: t} for c, t in zip(correct.ravel(), tidy.ravel(), strict=True)
    ]
    return trace_of((correct + weight * tidy).tolist(), parts=parts)


def test_a_part_that_is_the_length_is_no_form():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 60, 320)
    right = (rng.random(320) < 0.5).astype(float)
    parts = [{"right": r, "short": -float(t)} for r, t in zip(right, tokens, strict=True)]
    rewards = (right - tokens).reshape(40, 8).tolist()
    run = run_facts(correct="right")
    trace = trace_of(rewards, run=run, parts=parts, completion_tokens=tokens.tolist())
    assert "no part of the reward is about form" in H.sign(trace).text


def test_a_part_that_goes_with_the_answer_is_no_form():
    rng = np.random.default_rng(0)
    right = (rng.random((40, 8)) < 0.5).astype(float)
    degree = np.clip(right + 0.3 * rng.random(right.shape), 0, 1)
    pairs = zip(right.ravel(), degree.ravel(), strict=True)
    parts = [{"exact_match": r, "f1": d} for r, d in pairs]
    assert (
        "no part of the reward is about form" in H.sign(trace_of(degree.tolist(), parts=parts)).text
    )


def test_a_reward_without_form_is_not_concerned_and_one_without_answers_unknown():
    assert H.sign(trace_of([[0.0, 1.0]], parts={"exact_match": 1.0})).level is Level.OK
    with pytest.raises(NotRecorded):
        H.sign(trace_of([[0.0, 1.0]], parts={"f1": 0.3, "form": 0.5}))


test_levels_of_the_sign = levels_of(H.sign, {
    "a reward that follows form more than answers": ("suspect", lambda: run(3.0)),
    "form is found by its values and not by its name": ("suspect", lambda: run(3.0, name="bonus")),
    "form that counts less than the answer is ruled out": ("ok", lambda: run(0.3)),
    "form that is learnt and leaves nothing": ("note", lambda: run(1.0, form=1.0, right=0.0)),
})  # fmt: skip
