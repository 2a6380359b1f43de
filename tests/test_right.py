"""What says that an answer is right: told, or found by its values, never by its name."""

import json
import random

import numpy as np
import pytest
from typer.testing import CliRunner

import flatline
from flatline.cli import app
from flatline.errors import TraceError
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.right import UNDECIDED, candidates, needed_part, question, right_part
from flatline.trace import Recorder, Trace
from tests.traces import healthy_rows, run_facts, trace_of

UNTOLD = run_facts(correct=None)


def paid(weights, *, groups=20, told=None, **parts):
    """A trace whose reward is the weighted sum of its parts, one value per rollout each."""
    names = list(parts)
    columns = np.stack([np.asarray(parts[name], dtype=float) for name in names])
    reward = np.asarray(weights) @ columns.reshape(len(names), -1)
    rows = [
        dict(zip(names, map(float, row), strict=True)) for row in columns.reshape(len(names), -1).T
    ]
    rewards = reward.reshape(groups, -1).tolist()
    return trace_of(rewards, run=run_facts(correct=told), parts=rows)


def drawn(chance, seed=0, groups=20):
    return (np.random.default_rng(seed).random((groups, 8)) < chance).astype(float)


GRADED = np.random.default_rng(9).random((20, 8))


@pytest.mark.parametrize(
    ("weights", "parts", "right"),
    [
        ([1.0], {"x": drawn(0.5)}, "x"),
        ([1.0], {"x": 2 * drawn(0.5)}, "x"),
        ([1.0], {"x": 2 * drawn(0.5) - 1}, "x"),
        ([1.0], {"x": GRADED}, None),
        ([1.0, 0.2], {"x": drawn(0.5), "y": GRADED}, "x"),
        ([1.0, 0.2], {"format_correct": drawn(0.5), "accuracy": GRADED}, "format_correct"),
        ([0.1, 1.0], {"form": drawn(0.9), "f1": GRADED}, None),
        ([1.0, 0.5], {"x": drawn(0.5), "y": drawn(0.9, 1)}, None),
        ([1.0, 0.0], {"x": drawn(0.5), "again": drawn(0.5)}, "x"),
        ([1.0, 1.0], {"never": drawn(0.0), "short": GRADED}, None),
        ([1.0], {"always": drawn(1.1)}, "always"),
    ],
)
def test_a_part_of_two_values_that_the_reward_follows_says_right(weights, parts, right):
    assert right_part(paid(weights, **parts)) == right


def test_what_the_user_says_comes_first_whatever_its_values():
    assert right_part(paid([1.0, 0.2], told="y", x=drawn(0.5), y=GRADED)) == "y"


def test_a_name_that_no_part_has_decides_nothing():
    assert right_part(paid([1.0], told="gone", x=drawn(0.5))) == "x"


def test_the_parts_of_our_own_tasks_are_known():
    trace = paid([0.0, 0.0, 1.0], exact_match=drawn(0.5), format=drawn(0.9, 1), combined=drawn(0.5))
    assert right_part(trace) == "exact_match"


def answered(paid_by, *, outweighs=9.0, held=True):
    """Groups of eight in which half of the answers are gold; `paid_by` gives one part of each text,
    and another part that has nothing to do with it decides the reward."""
    rng = np.random.default_rng(0)
    rows, rewards = [], []
    for group in range(20):
        golds = rng.permutation(8) < 4
        texts = [f"so #### {group if gold and held else 900 + at}" for at, gold in enumerate(golds)]
        parts = [{"x": float(paid_by(gold, rng)), "short": rng.random()} for gold in golds]
        rewards.append([part["x"] + outweighs * part["short"] for part in parts])
        rows += [
            {"completion": text, "gold": str(group), "parts": part}
            for text, part in zip(texts, parts, strict=True)
        ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return trace_of(rewards, run=run_facts(correct=None), **columns)


def test_a_part_that_pays_gold_alone_says_right_although_the_reward_follows_another():
    assert right_part(answered(lambda gold, _: gold)) == "x"


@pytest.mark.parametrize(
    "paid_by",
    [lambda gold, rng: rng.random() < 0.9, lambda gold, _: not gold, lambda gold, _: 0.0],
    ids=["form", "wrong answers", "nothing"],
)
def test_a_part_that_pays_other_answers_too_or_none_is_asked_about(paid_by):
    assert right_part(answered(paid_by)) is None


def test_a_part_that_could_have_met_gold_by_chance_is_asked_about():
    rare = iter([True] * 3 + [False] * 157)
    assert right_part(answered(lambda gold, _: gold and next(rare))) is None


# -- the question


def test_several_that_could_be_it_are_asked_about_once_in_the_summary():
    report = flatline.diagnose(paid([1.0, 0.5], a=drawn(0.5), b=drawn(0.9, 1)))
    asked = "Which of `a`, `b` says that an answer is right? Type correct='a'"
    assert report.question.startswith(asked)
    assert report.summary.count("Which of") == 1 and report.summary.endswith(report.question)
    unknown = [one for one in report.findings if UNDECIDED in one.text]
    assert {one.hypothesis for one in unknown} >= {"H05", "H45", "H37"}
    assert all(one.level is Level.UNKNOWN for one in unknown)


def test_a_part_of_form_beside_a_graded_answer_is_asked_about():
    trace = paid([0.1, 1.0], form=drawn(0.9), f1=GRADED)
    assert "Which of `form`, `f1`" in question(trace)
    report = flatline.diagnose(trace)
    assert not [one.text for one in report.findings if one.level in ALARMS], (
        "95 % form is no ceiling"
    )


def test_nothing_is_asked_where_it_is_told_or_where_nothing_could_be_it():
    assert question(paid([1.0, 0.5], told="a", a=drawn(0.5), b=drawn(0.9, 1))) == ""
    assert question(paid([1.0], a=GRADED)) == ""
    assert flatline.diagnose(paid([1.0], a=drawn(0.5))).question == ""


def test_an_answer_to_the_question_is_taken():
    trace = paid([1.0, 0.5], a=drawn(0.5), b=drawn(0.9, 1))
    report = flatline.diagnose(trace, correct="a")
    assert report.question == ""
    assert "`a`" in next(one.text for one in report.findings if one.hypothesis == "H05")
    assert needed_part(trace.naming("b")) == "b" and right_part(trace) is None


def test_a_wrong_answer_to_it_is_refused_with_the_parts_that_there_are():
    trace = paid([1.0, 0.5], a=drawn(0.5), b=drawn(0.9, 1))
    with pytest.raises(TraceError, match=r"There are: 'a', 'b'\."):
        flatline.diagnose(trace, correct="c")
    with pytest.raises(TraceError, match="none, since no rollout has parts"):
        flatline.diagnose(Trace.from_rows(run=UNTOLD, steps=[{"step": 1}]), correct="c")


def test_diagnose_takes_the_answer_on_the_command_line(tmp_path):
    trace = paid([1.0, 0.5], a=drawn(0.5), b=drawn(0.9, 1))
    rewards, parts = trace.rollouts["reward"], trace.parts()
    with Recorder(tmp_path, settings={"num_generations": 8}) as recorder:
        recorder.log_rollouts(
            {
                "step": 1,
                "rollout": i,
                "group": i // 8,
                "reward": rewards[i],
                "parts": {name: values[i] for name, values in parts.items()},
            }
            for i in range(len(rewards))
        )
        recorder.log_step(step=1, reward=float(rewards.mean()))
    runner = CliRunner()
    asked = runner.invoke(app, ["diagnose", str(tmp_path), "--json"])
    assert "Which of `a`, `b`" in json.loads(asked.stdout)["summary"]
    told = runner.invoke(app, ["diagnose", str(tmp_path), "--json", "--correct", "a"])
    assert "Which of" not in json.loads(told.stdout)["summary"]
    wrong = runner.invoke(app, ["diagnose", str(tmp_path), "--correct", "c"])
    assert wrong.exit_code == 2 and "There are: 'a', 'b'" in wrong.output


# -- names


NAMES = [
    *("accuracy", "correct", "format_reward", "xml", "recall", "progress", "length_penalty"),
    *("combined", "exact_match", "f", "incorrect", "tag_count", "reward", "wrong", "tools"),
]
"""Words that once decided, and some that never did; the two that name our own tasks together are
never drawn together."""


def renamed(trace_rows, names):
    """The same run with other names for its reward functions."""
    rows = [
        {**row, "parts": {names[name]: value for name, value in row["parts"].items()}}
        for row in trace_rows["rollouts"]
    ]
    return Trace.from_rows(run=UNTOLD, **{**trace_rows, "rollouts": rows})


def seen(report, names):
    """Every finding, the names in its text replaced by what they were."""
    texts = {one.hypothesis: one.text for one in report.findings}
    for was, name in names.items():
        texts = {code: text.replace(f"`{name}`", f"`{was}`") for code, text in texts.items()}
    return {one.hypothesis: (one.level, texts[one.hypothesis]) for one in report.findings}


def user_rows(kind):
    """A healthy run with two functions of a user's own, one of them graded where that is asked."""
    rows, draw = healthy_rows(steps=8), random.Random(0)
    for row in rows["rollouts"]:
        right, tidy = row["parts"]["exact_match"], row["parts"]["format"]
        second = draw.random() if kind == "graded" else tidy
        row["parts"] = {"first": right, "second": second}
        row["reward"] = right + (3.0 if kind == "dominating" else 0.2) * second
    return rows


@pytest.mark.parametrize("kind", ["graded", "two-valued", "dominating"])
def test_renaming_reward_functions_changes_no_finding(kind):
    rows, draw = user_rows(kind), random.Random(1)
    expected = seen(flatline.diagnose(renamed(rows, {"first": "first", "second": "second"})), {})
    for _ in range(3):
        one, other = draw.sample(NAMES, 2)
        if {one, other} == {"combined", "exact_match"}:
            continue
        names = {"first": one, "second": other}
        assert seen(flatline.diagnose(renamed(rows, names)), names) == expected, names


def test_a_collapse_that_hangs_on_which_part_is_right_is_asked_about():
    rows = healthy_rows(steps=12, gain=0.0)
    for row in rows["rollouts"]:
        late = row["step"] > 2
        row["model_tokens"] = 1 if late else 60
        row["parts"] = {"a": 0.0 if late else row["parts"]["exact_match"], "b": float(late)}
        row["gold"] = None  # which part pays for it would decide
        row["reward"] = sum(row["parts"].values())
    report = flatline.diagnose(Trace.from_rows(run=UNTOLD, **rows))
    collapse = next(one for one in report.findings if one.hypothesis == "H43")
    assert collapse.level is Level.UNKNOWN and UNDECIDED in collapse.text
    assert "Which of `a`, `b`" in report.summary


def test_a_part_that_is_always_the_same_as_another_is_one_candidate():
    assert candidates(paid([1.0, 1.0], a=drawn(0.5), b=drawn(0.5))) == ["a"]
