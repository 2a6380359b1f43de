"""Evaluations, from made-up plays: what is averaged over what, and what is written."""

import json
import os

import pytest

from flatline.errors import ConfigError
from flatline.evaluate import compare, evaluate, save_trajectories, summarise
from flatline.files import write_atomically
from flatline.rollout.record import Finish, Turn
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


def test_n_counts_problems_not_plays():
    got = summarise(TWO, plays({"a": [1, 0, 1, 1], "b": [0, 0, 0, 1]}))
    assert got.parts["combined"].n == 2
    assert got.parts["combined"].value == 0.5


def test_results_are_broken_down_by_hops():
    got = summarise(TWO, plays({"a": [1, 0], "b": [0, 0]}))
    assert {hops: parts["combined"].value for hops, parts in got.per_hop.items()} == {2: 0.5, 3: 0}


def test_a_part_is_averaged_over_the_problems_that_have_it():
    rollouts = [rollout_of("a", parts={"citation": 0.5}), rollout_of("b")]
    assert summarise(TWO, rollouts).parts["citation"].n == 1
    assert summarise(TWO, rollouts).parts["citation"].value == 0.5


def test_only_an_exact_match_counts_as_a_pass():
    rollouts = [rollout_of("a", reward=0.9, right=True), rollout_of("b", reward=0.99, right=False)]
    assert summarise(TWO, rollouts).pass_at_k[1].value == 0.5


def test_pass_at_k_is_given_for_powers_of_two_and_for_all_plays():
    got = summarise(TWO, plays({"a": [1, 0, 0, 0, 0, 0], "b": [0] * 6}))
    assert list(got.pass_at_k) == [1, 2, 4, 6]
    assert got.pass_at_k[6].value == 0.5


def test_group_std_is_the_mean_spread_between_plays_of_a_problem():
    got = summarise(TWO, plays({"a": [1, 0], "b": [1, 1]}))
    assert got.group_std.value == pytest.approx(0.5**0.5 / 2)
    assert got.group_std.n == 2


def test_group_std_of_single_plays_is_unknown():
    assert summarise(TWO, plays({"a": [1], "b": [0]})).to_json()["group_std"]["value"] is None


def test_finishes_and_events_are_counted_zeros_included():
    rollouts = [
        rollout_of("a", finish=Finish.TURNS, events={"malformed_calls": 2}),
        rollout_of("b", events={"malformed_calls": 1, "tool_calls": 3}),
    ]
    got = summarise(TWO, rollouts)
    assert got.finish == {"answered": 1, "turn_length": 0, "turns": 1, "context": 0}
    assert got.events == {
        "tool_calls": 3,
        "tool_errors": 0,
        "malformed_calls": 3,
        "malformed_answers": 0,
    }


def test_only_tokens_of_the_model_are_counted():
    assert summarise(TWO, plays({"a": [1], "b": [0]})).tokens == 4


def test_rewards_above_one_are_measured_on_their_own_scale():
    got = summarise(TWO, plays({"a": [1.5, 0], "b": [2, 1]}))
    assert got.parts["combined"].value == pytest.approx(1.125)
    assert got.parts["combined"].high <= 2


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


def test_the_order_of_rollouts_does_not_matter():
    rollouts = plays({"a": [1, 0], "b": [0, 1]})
    assert summarise(TWO, rollouts) == summarise(TWO, rollouts[::-1])


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


def test_evaluations_of_different_problems_are_not_compared():
    one = summarise(TWO, plays({"a": [1], "b": [1]}))
    other = summarise(TWO[:1], plays({"a": [1]}))
    with pytest.raises(ConfigError, match="same --datasets"):
        compare(one, other)


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


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "plays.jsonl"
    path.write_text("old\n")

    def lines():
        yield "new"
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        write_atomically(path, lines())
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["plays.jsonl"]
