"""Traces in memory: columns, groups, tokens and names."""

import math

import numpy as np
import pytest

from flatline.errors import NotRecorded, TraceError
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.tokens import UNKNOWN_AUTHOR
from tests.traces import PIECE, healthy_trace, rollout_rows, trace_of

M, T = Author.MODEL, Author.TOOL


def token_row(rollout=0, *, step=1, n=3, **columns):
    row = {"step": step, "rollout": rollout, "ids": list(range(n)), "author": [M] * n}
    return row | {"trained": [1] * n} | columns


def test_a_column_without_a_value_is_not_recorded_rather_than_zero():
    trace = trace_of([[0.0, 1.0]])
    assert "hops" not in trace.rollouts
    assert "reward" in trace.rollouts
    with pytest.raises(NotRecorded) as caught:
        trace.rollouts["hops"]
    assert caught.value.column == "rollouts.hops"


def test_a_misspelt_column_is_a_bug_and_not_a_missing_measurement():
    with pytest.raises(KeyError, match="reward"):
        trace_of([[1.0]]).rollouts["rewrd"]
    with pytest.raises(TraceError, match="Did you mean `reward`"):
        Trace.from_rows(rollouts=[{"step": 1, "rewards": 1.0}])


def test_columns_are_shared_and_cannot_be_changed():
    trace = trace_of([[1.0, 2.0]])
    with pytest.raises(ValueError, match="read-only"):
        trace.rollouts["reward"][0] = 5.0


def test_an_empty_trace_answers_every_question_with_not_recorded():
    trace = Trace.from_rows()
    assert len(trace.steps) == len(trace.rollouts) == len(trace.tokens()) == 0
    assert trace.parts() == {}
    assert trace.settings == {}
    assert len(trace.token_steps) == 0
    for ask in (
        lambda: trace.steps["reward"],
        lambda: trace.groups(),
        lambda: trace.metric("reward"),
        lambda: trace.tokens().ids,
    ):
        with pytest.raises(NotRecorded):
            ask()


def test_nan_and_infinity_pass_through_every_kind_of_column():
    odd = [math.nan, math.inf, -math.inf]
    trace = Trace.from_rows(
        steps=[{"step": i, "reward": x, "metrics": {"a": x}} for i, x in enumerate(odd)],
        rollouts=[
            {"step": 1, "rollout": i, "group": 0, "reward": x, "hops": x, "parts": {"p": x}}
            for i, x in enumerate(odd)
        ],
        tokens=[token_row(i, n=1, sampler=[x]) for i, x in enumerate(odd)],
    )
    for found in (
        trace.steps["reward"],
        trace.metric("a"),
        trace.rollouts["reward"],
        trace.parts()["p"],
        trace.tokens().sampler,
        trace.groups().each("reward")[0],
    ):
        np.testing.assert_array_equal(found, odd)
    assert "hops" not in trace.rollouts  # a whole number cannot be NaN


def test_groups_are_the_rollouts_of_one_prompt_in_one_step():
    rows = rollout_rows([[1.0, 0.0], [0.5, 0.5]], step=1) + rollout_rows([[2.0, 3.0]], step=2)
    groups = Trace.from_rows(rollouts=rows).groups()
    assert groups.n == 3
    assert groups.index.tolist() == [0, 0, 1, 1, 2, 2]
    assert groups.size.tolist() == [2, 2, 2]
    assert groups.step.tolist() == [1, 1, 2]
    assert groups.prompt_id.tolist() == ["p1-0", "p1-1", "p2-0"]
    assert [part.tolist() for part in groups.each("reward")] == [[1, 0], [0.5, 0.5], [2, 3]]


def test_without_group_numbers_the_prompt_makes_the_group():
    rows = [{**row, "group": None} for row in rollout_rows([[1.0, 0.0], [0.5]])]
    assert Trace.from_rows(rollouts=rows).groups().size.tolist() == [2, 1]
    rows = [{**row, "prompt_id": None} for row in rows]
    with pytest.raises(NotRecorded):
        Trace.from_rows(rollouts=rows).groups()


def test_parts_and_metrics_are_aligned_and_nan_where_absent():
    trace = trace_of([[1.0, 0.0]], parts=[{"a": 1.0, "b": 2.0}, {"b": 3.0}])
    np.testing.assert_array_equal(trace.parts()["a"], [1.0, math.nan])
    np.testing.assert_array_equal(trace.parts()["b"], [2.0, 3.0])
    steps = [{"step": 1, "metrics": {"x": 1.0}}, {"step": 2}]
    np.testing.assert_array_equal(Trace.from_rows(steps=steps).metric("x"), [1.0, math.nan])


def test_tokens_are_flat_and_know_their_rollout():
    trace = Trace.from_rows(
        rollouts=rollout_rows([[1.0, 0.0]]),
        tokens=[token_row(1, n=2, prompt_ids=[7]), token_row(0, n=3, prompt_ids=[8, 9])],
    )
    tokens = trace.tokens()
    assert tokens.rollout_rows.tolist() == [1, 0]
    assert tokens.row.tolist() == [0, 0, 1, 1, 1]
    assert tokens.position.tolist() == [0, 1, 0, 1, 2]
    assert tokens.ids.tolist() == [0, 1, 0, 1, 2]
    assert tokens.prompt_ids.tolist() == [7, 8, 9]
    assert tokens.prompt_row.tolist() == [0, 1, 1]
    assert (tokens.advantage[:2] < 0).all()
    assert (tokens.advantage[2:] > 0).all()
    assert tokens.trained.dtype == bool


def test_turns_are_counted_from_the_authors():
    rows = [
        token_row(0, n=5, author=[M, M, T, M, T], trained=[0] * 5),
        token_row(1, n=3, author=[M, T, M], trained=[0] * 3),
    ]
    tokens = Trace.from_rows(rollouts=rollout_rows([[1.0, 0.0]]), tokens=rows).tokens()
    assert tokens.turn.tolist() == [0, 0, -1, 1, -1, 0, -1, 1]
    assert tokens.first_of_turn.tolist() == [True, False, False, True, False, True, False, True]


def test_a_field_that_some_rollouts_lack_is_filled_there():
    rows = [token_row(0, n=2, sampler=[-1.0, -2.0]), token_row(1, n=1, author=None, trained=None)]
    tokens = Trace.from_rows(rollouts=rollout_rows([[1.0, 0.0]]), tokens=rows).tokens()
    np.testing.assert_array_equal(tokens.sampler, np.float32([-1, -2, math.nan]))
    assert tokens.author.tolist() == [M, M, UNKNOWN_AUTHOR]
    assert tokens.trained.tolist() == [True, True, False]
    with pytest.raises(NotRecorded):
        tokens.reference  # noqa: B018


def test_lists_of_another_length_are_refused_rather_than_shifted():
    rows = [token_row(0, n=3, sampler=[-1.0, -2.0])]
    tokens = Trace.from_rows(rollouts=rollout_rows([[1.0]]), tokens=rows).tokens()
    with pytest.raises(TraceError, match="step 1, rollout 0 has 2 entries for 3 tokens"):
        tokens.sampler  # noqa: B018


def test_tokens_of_chosen_steps_are_those_and_no_others():
    trace = healthy_trace(steps=4, prompts=2, generations=2)
    tokens = trace.tokens(steps=[2, 4])
    assert set(trace.rollouts["step"][tokens.rollout_rows]) == {2, 4}
    assert len(tokens) == 2 * 4 * len(PIECE)
    assert trace.token_steps.tolist() == [1, 2, 3, 4]
    assert len(trace.tokens(steps=[])) == len(trace.tokens(steps=[99])) == 0


def test_steps_without_tokens_are_named_with_those_that_have_some():
    rows = [{"step": step, "rollout": 0} for step in (1, 4)]
    trace = Trace.from_rows(rollouts=rows, tokens=[token_row(step=step) for step in (1, 4)])
    with pytest.raises(NotRecorded, match=r"no tokens of step 999\.\n2 steps .* from 1 to 4"):
        _ = trace.tokens(steps=[999]).ids
    with pytest.raises(NotRecorded, match=r"no tokens of steps 2, 3, 5, 6, 7, \.\.\."):
        _ = trace.tokens(steps=[2, 3, 5, 6, 7, 8]).ids
    with pytest.raises(NotRecorded, match=r"This trace has no `tokens\.old`"):
        _ = trace.tokens(steps=[1]).old
    with pytest.raises(NotRecorded, match="An imported log"):
        _ = Trace.from_rows(steps=[{"step": 1}]).tokens(steps=[1]).ids


def test_a_divergence_is_where_what_is_trained_first_differs_from_what_was_sampled():
    rollouts = [{"step": 1, "rollout": at, "as_sampled": int(at == 0)} for at in range(3)]
    trace = Trace.from_rows(
        rollouts=rollouts,
        tokens=[
            token_row(0, prompt_ids=[5, 6]),
            token_row(1, prompt_ids=[5, 6], sampled_prompt_ids=[5, 7, 6]),
            token_row(2, prompt_ids=[5, 6], sampled_ids=[0, 1, 2, 3]),
        ],
    )
    prompt, completion = trace.tokens().divergences
    assert (prompt.row, prompt.in_prompt, prompt.position) == (1, True, 1)
    assert prompt.sampled.tolist() == [5, 7, 6]
    assert (completion.row, completion.in_prompt, completion.position) == (2, False, 3)
    assert completion.trained.tolist() == [0, 1, 2]
