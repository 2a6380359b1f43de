"""Evaluations, from made-up plays: what is averaged over what, and what is written."""

import json

import pytest

from flatline.evaluate import compare, evaluate, save_trajectories, summarise
from flatline.rollout.record import Turn
from flatline.tasks import make_task
from tests.plays import problem_of, rollout_of

TWO = [problem_of("a", hops=2), problem_of("b", hops=3)]


def plays(rewards: dict[str, list[float]]):
    return [
        rollout_of(id, sample, reward=reward)
        for id, row in rewards.items()
        for sample, reward in enumerate(row)
    ]


class FakePlayer:
    """Earns 1 on every even sample."""

    def play(self, jobs, *, seed, on_done=None):
        rollouts = [
            rollout_of(job.problem.id, job.sample, reward=float(job.sample % 2 == 0))
            for job in jobs
        ]
        for rollout in rollouts:
            if on_done:
                on_done(rollout)
        return rollouts


def test_the_json_has_the_promised_shape():
    got = summarise(
        TWO, plays({"a": [1, 0], "b": [0, 0]}), about={"model": "lab", "seed": 0}
    ).to_json()
    assert set(got) == {
        *("parts", "per_hop", "pass_at_k", "group_std", "finish", "events"),
        *("problems", "samples", "tokens", "seconds", "model", "seed"),
    }
    assert set(got["parts"]["combined"]) == {"value", "low", "high", "n"}
    assert set(got["per_hop"]["2"]) == {"combined", "exact_match"}
    assert set(got["pass_at_k"]) == {"1", "2"}
    json.dumps(got, allow_nan=False)


def test_a_part_is_averaged_over_the_problems_that_have_it():
    rollouts = [rollout_of("a", parts={"citation": 0.5}), rollout_of("b")]
    assert summarise(TWO, rollouts).parts["citation"].n == 1
    assert summarise(TWO, rollouts).parts["citation"].value == 0.5


def test_only_an_exact_match_counts_as_a_pass():
    rollouts = [rollout_of("a", reward=0.9, right=True), rollout_of("b", reward=0.99, right=False)]
    assert summarise(TWO, rollouts).pass_at_k[1].value == 0.5


def test_group_std_is_the_mean_spread_between_plays_of_a_problem():
    got = summarise(TWO, plays({"a": [1, 0], "b": [1, 1]}))
    assert got.group_std.value == pytest.approx(0.5**0.5 / 2)
    assert got.group_std.n == 2


@pytest.mark.parametrize(
    "rollouts",
    [[], plays({"a": [1]}), plays({"a": [1, 0], "b": [1]}), plays({"a": [1], "b": [1]}) * 2],
)
def test_missing_or_repeated_plays_are_refused(rollouts):
    with pytest.raises(ValueError):
        summarise(TWO, rollouts)


def test_evaluate_plays_every_problem_as_often_as_asked():
    seen = []
    got = evaluate(TWO, FakePlayer(), samples=4, seed=7, on_done=seen.append)
    assert len(seen) == len(got.rollouts) == 8
    assert got.about["seed"] == 7
    assert got.parts["combined"].value == 0.5
    assert got.seconds is not None


def test_a_comparison_is_the_second_minus_the_first():
    problems = [problem_of(str(i)) for i in range(40)]
    worse = summarise(problems, plays({p.id: [0, 1] for p in problems}), about={"model": "old"})
    better = summarise(problems, plays({p.id: [1, 1] for p in problems}), about={"model": "new"})
    got = compare(worse, better)
    assert got.parts["combined"].value == 0.5
    assert got.parts["combined"].low > 0.4
    assert got.parts["combined"].n == 40
    assert got.to_json()["model"] == "new"
    assert got.to_json()["minus"] == "old"


def test_trajectories_are_saved_whole_with_messages_and_parts(tmp_path):
    task = make_task("toolmath")
    problems = task.load("lab,,test[:1]", split="test")
    turns = [Turn(text="calculate", observations=["376"]), Turn(text="<answer>1</answer> ש\ud800")]
    played = summarise(problems, [rollout_of(problems[0].id, turns=turns)])
    save_trajectories(tmp_path / "plays.jsonl", task, played)
    (line,) = (tmp_path / "plays.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert [m["role"] for m in row["messages"]] == [
        *("system", "user"),
        *("assistant", "tool", "assistant"),
    ]
    assert row["messages"][-1]["content"].endswith("ש\ud800")
    assert row["parts"] == {"exact_match": 1.0}
    assert row["finish"] == "answered"
