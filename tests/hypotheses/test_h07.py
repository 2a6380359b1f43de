"""H07 multi-step."""

import numpy as np
import pytest
from tests.traces import PIECE, M, T, X, healthy_rows, healthy_trace, run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h07_multi_step import MultiStep
from flatline.trace import Trace

H = MultiStep()
TURN = (M, M, X, T, T, X)
"""A turn of the model and what comes back."""


def trace_with(trained, turns=lambda at: 2 + at % 3, change=lambda row: {}):
    """`trained(turn, turns)` says which turns carry loss."""
    rows = healthy_rows(steps=2, prompts=2)
    tokens = []
    for at, row in enumerate(rows["tokens"]):
        n = turns(at)
        author = np.array((TURN * n)[: n * len(TURN) - 4], np.uint8)
        turn = np.arange(len(author)) // len(TURN)
        mask = np.array([trained(t, n) for t in turn]) & (author == M)
        sampler = np.full(len(author), -0.5, np.float32)
        row |= {"author": author, "ids": turn, "trained": mask.astype(np.uint8)}
        row |= {"attended": np.ones(len(author), np.uint8), "sampler": sampler}
        row |= {"trainer": sampler, "old": sampler, "reference": sampler}
        tokens.append({**row, **change(row)})
    return Trace.from_rows(run=run_facts(), **{**rows, "tokens": tokens})


def test_turns_after_the_first_without_loss_are_a_fault():
    found = H.sign(trace_with(lambda turn, turns: turn < 1))
    assert found.level is Level.FAULT
    assert "first 1 of up to 4" in found.text
    assert "w1" in found.evidence[0].text


def test_the_cut_may_come_later_and_one_turn_rollouts_do_not_hide_it():
    later = trace_with(lambda turn, turns: turn < 2, turns=lambda at: 1 + at % 4)
    assert H.sign(later).level is Level.FAULT


def test_turns_lost_from_the_end_are_left_to_h02():
    found = H.sign(trace_with(lambda turn, turns: turn < turns - 1))
    assert found.level is Level.NOTE
    assert "H02" in found.text


def test_healthy_runs_train_every_turn():
    assert H.sign(healthy_trace()).level is Level.OK
    assert H.sign(trace_with(lambda turn, turns: True)).level is Level.OK


def test_rollouts_left_out_of_the_loss_as_a_whole_do_not_count():
    left_out = trace_with(lambda turn, turns: turns > 2)
    assert H.sign(left_out).level is Level.OK


def test_single_turn_runs_are_not_concerned():
    assert "Does not apply" in H.sign(trace_with(lambda *_: True, turns=lambda at: 1)).text


def test_a_gap_that_begins_with_the_second_turn_is_noted():
    def drift(row):
        return {"trainer": row["sampler"] - np.where(row["ids"] > 0, 0.5, 0).astype(np.float32)}

    found = H.sign(trace_with(lambda turn, turns: True, change=drift))
    assert found.level is Level.NOTE
    assert "H10" in found.text


def test_a_trace_without_tokens_says_what_is_missing():
    with pytest.raises(NotRecorded):
        H.sign(trace_of([[0.0, 1.0]]))
    assert PIECE.count(M) > 0
