"""H43 behaviour-collapse."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Level
from flatline.hypotheses.h04_context_truncation import ContextTruncation
from flatline.hypotheses.h43_behaviour_collapse import BehaviourCollapse
from flatline.trace import Trace

H = BehaviourCollapse()
H04 = ContextTruncation()


def run(edit, *, gain=0.0, steps=12, ids=None, prompts=8):
    rows = healthy_rows(steps=steps, gain=gain, prompts=prompts)
    for row in rows["rollouts"]:
        edit(row)
    for row in rows["tokens"]:
        if ids is not None:
            own = row["trained"] == 1
            row["ids"] = np.where(own, ids(row), row["ids"])
    return Trace.from_rows(run=run_facts(), **rows)


def given_up(row):
    row["tool_calls"] = 2 if row["step"] < 5 else row["rollout"] % 8 == 0


def nothing(row):
    pass


def test_calls_that_are_given_up_while_the_reward_stays_are_suspected():
    found = H.sign(run(given_up))
    assert found.level is Level.SUSPECT
    assert found.severity < 1, "behind every other suspect"


def terse(row):
    row["model_tokens"] = 250 if row["step"] < 3 else 6 + row["rollout"] % 3


def test_a_model_that_stops_thinking_within_two_steps_is_suspected():
    found = H.sign(run(terse))
    assert found.level is Level.SUSPECT
    assert found.severity < 1, "behind every other suspect"


def learnt(row):
    terse(row)
    row["parts"] = {"exact_match": float(row["step"] >= 3)}


def one_token(row, right):
    """160 of 160 late completions are one token; form is paid, so that the reward rises."""
    late = row["step"] > 6
    row |= {"tool_calls": 0, "model_tokens": 1 if late else 30 + row["rollout"] % 9}
    row["completion"] = "" if late else f"so {row['rollout']} it is {row['step']}"
    row["parts"] = {"right": right(row, late), "short": 1.0 if late else 0.1}
    row["reward"] = row["parts"]["right"] + row["parts"]["short"]


@pytest.mark.parametrize("right", [
    lambda row, late: 0.0 if late else float(row["rollout"] % 4 == 0),
    lambda row, late: 0.0,
    lambda row, late: 0.0 if late else 0.1 * (row["rollout"] % 4),
], ids=["falls", "never right", "is no yes or no"])  # fmt: skip
@pytest.mark.parametrize("name", ["right", "correctness", "zzz"])
def test_a_collapse_into_empty_answers_is_told_whatever_the_reward_is_called(right, name):
    def edit(row):
        one_token(row, right)
        row["parts"] = {name: row["parts"]["right"], "brevity": row["parts"]["short"]}

    found = H.sign(run(edit, steps=20))
    assert found.level in (Level.SUSPECT, Level.NOTE)
    assert found.level is Level.SUSPECT or found.points_at_cause
    assert "tokens" in found.text or "one text" in found.text


def same(row):
    row["tool_calls"] = 0
    row["completion"] = "42" if row["step"] > 6 else f"{row['rollout']} {row['step']}"


def shrinking(right, steps=40):
    """A log of completions that shrink while a length penalty makes the reward rise."""
    rng, rows = np.random.default_rng(0), []
    for at in range(1, steps + 1):
        size = (35.0 if at < 20 else max(2.0, 35.0 - 3 * (at - 20))) * rng.uniform(0.7, 1.3)
        hit = right(at) * rng.uniform(0.7, 1.3)
        metrics = {"rewards/a/mean": hit, "rewards/b/mean": -size / 10}
        row = {"step": at, "reward": hit - size / 10, "completion_length": size}
        rows.append({**row, "metrics": metrics})
    return Trace.from_rows(run={"source": "import:trl", "unrecognised": []}, steps=rows)


def test_a_log_whose_completions_shrink_while_all_parts_rise_is_a_reservation():
    found = H.sign(shrinking(lambda at: 0.4 + 0.01 * at))
    assert found.level is Level.NOTE
    assert found.points_at_cause


ROWS = 90


def running_on(reward, entropy):
    """A log of completions that grow into the limit from a third of the run on."""
    rng = np.random.default_rng(3)
    grown = np.clip((np.arange(ROWS) - 30) / 25, 0, 1)
    rows = [
        {
            "step": at + 1,
            "reward": max(0.0, float(reward(g) + rng.normal(0, 0.04))),
            "entropy": float(entropy(g) * rng.uniform(0.95, 1.05)),
            "completion_length": float(1000 * (1 + 2 * g) * rng.uniform(0.95, 1.05)),
            "truncated_share": float((0.04 + 0.7 * g) * rng.uniform(0.9, 1.1)),
        }
        for at, g in enumerate(grown)
    ]
    return Trace.from_rows(run={"source": "import:verl", "settings": {}}, steps=rows)


def test_what_is_cut_of_a_policy_that_breaks_is_explained_by_the_break():
    trace = running_on(lambda g: 0.5 - 0.45 * g, lambda g: 0.3 + 2 * g)
    assert H04.sign(trace).level is Level.SUSPECT
    assert [one.hypothesis for one in diagnose(trace).causes] == ["H43"]


@pytest.mark.parametrize(("reward", "entropy"), [
    (lambda g: 0.5 - 0.45 * g, lambda g: 0.3),
    (lambda g: 0.5 * (0.96 - 0.7 * g), lambda g: 0.3 + 2 * g),
    (lambda g: (0.4 + 0.45 * g) * (0.96 - 0.7 * g), lambda g: 0.3 + 2 * g),
], ids=["the entropy stays", "what ended is paid as before", "what ended gets better"])  # fmt: skip
def test_a_limit_that_may_cost_the_reward_stays_a_cause(reward, entropy):
    trace = running_on(reward, entropy)
    assert H04.sign(trace).level is Level.SUSPECT
    assert "H04" in [one.hypothesis for one in diagnose(trace).causes]


test_levels_of_the_sign = levels_of(H.sign, {
    "calls that are given up while the reward rises": ("note",
        lambda: run(given_up, gain=0.5, steps=30)),
    "a model that always repeated itself did not collapse": ("ok",
        lambda: run(nothing, prompts=32, ids=lambda row: 7)),
    "a model that becomes terse and better did not collapse": ("ok", lambda: run(learnt)),
    "a model that writes half as much did not collapse": ("ok",
        lambda: run(lambda row: row.update(model_tokens=250 if row["step"] < 3 else 125))),
    "without a tool a collapse is ruled out by what was written and only by that": ("ok",
        lambda: run(lambda row: row.update(tool_calls=0))),
    "without a tool and what was written": ("not recorded",
        lambda: run(lambda row: row.update(tool_calls=0, completion=None))),
    "one answer to every prompt": ("suspect", lambda: run(same)),
    "a log whose completions shrink to nothing is a collapse where a part falls": ("suspect",
        lambda: shrinking(lambda at: 0.4 if at < 22 else 0.0)),
    "a model that comes to repeat itself": ("suspect",
        lambda: run(nothing, prompts=32, ids=lambda row: 7 if row["step"] > 6 else row["ids"])),
})  # fmt: skip
