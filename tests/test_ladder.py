from dataclasses import replace
from types import SimpleNamespace

import pytest

import flatline.training.run
from flatline.config import RunConfig
from flatline.diagnosis.ladder import STEPS, climb_ladder
from flatline.errors import TraceError
from flatline.heldout import HeldOutScore
from flatline.hypotheses.base import Level

PROBLEMS = [f"p{i}" for i in range(64)]


def score(part: str, values: list[float]) -> HeldOutScore:
    mean = sum(values) / len(values)
    return HeldOutScore(
        step=0,
        problems=PROBLEMS,
        rewards=values,
        parts={part: mean},
        plays={part: list(values)},
    )


@pytest.fixture
def trained(monkeypatch):
    """Training in which the parts named in `learnable` rise and the others stay."""
    seen: list[RunConfig] = []
    learnable = {"format"}

    def train(config: RunConfig):
        seen.append(config)
        after = 0.9 if config.reward in learnable else 0.5
        scores = [score(config.reward, [0.5] * 64), score(config.reward, [after] * 64)]
        return SimpleNamespace(scores=scores)

    monkeypatch.setattr(flatline.training.run, "train", train)
    return SimpleNamespace(seen=seen, learnable=learnable)


def test_evaluations_of_different_problems_are_never_paired():
    before = score("format", [0.5] * 64)
    with pytest.raises(TraceError, match="different held-out problems"):
        replace(before, problems=["other", *PROBLEMS[1:]]).since(before, "format")


def test_the_ladder_stops_at_the_first_rung_that_fails(trained):
    finding = climb_ladder(RunConfig(seed=3))
    assert [config.reward for config in trained.seen] == ["format", "retrieval_recall"]
    assert finding.level is Level.SUSPECT and "the question" in finding.text


def test_rungs_differ_from_the_run_in_their_reward_and_length_only(trained):
    climb_ladder(RunConfig(seed=3, lora_r=4, output_dir="outputs/mine"))
    config = trained.seen[0]
    assert (config.seed, config.lora_r, config.max_steps) == (3, 4, STEPS)
    assert "outputs/mine" not in config.output_dir


def test_a_whole_stack_climbs_to_the_top(trained):
    trained.learnable |= {"retrieval_recall", "citation", "combined"}
    told = []
    assert climb_ladder(RunConfig(), on_rung=told.append).level is Level.OK
    assert [climb.rung.part for climb in told][-1] == "combined"
