"""The verifiers environment scores as flatline does. verifiers itself is not needed for that."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from flatline.tasks.base import ToolCall
from flatline.tasks.check import play
from flatline.tasks.musique import Musique

PACKAGE = Path(__file__).parent.parent / "environments" / "vf_musique" / "vf_musique"
TASK = Musique(retriever="golden")


def module(name):
    """A module of the package without the package, which imports verifiers."""
    spec = importlib.util.spec_from_file_location(f"vf_musique_{name}", PACKAGE / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


problems, scoring = module("problems"), module("scoring")


@pytest.fixture(scope="module")
def some():
    found = TASK.load("lab,answerable,validation[:8];lab,full,train[:8]", split="validation")
    assert {problem.answerable for problem in found} == {True, False}
    return found


def as_turns(script):
    """A script as a model would say it: what cannot be read stays in the text of its turn."""
    turns = []
    for step in script:
        if isinstance(step, ToolCall):
            turns.append(scoring.Said("", [(step.name, json.dumps(dict(step.arguments)))]))
        elif isinstance(step, str):
            turns.append(scoring.Said(step, []))
        else:
            turns.append(scoring.Said(f"<tool_call>{step.text}", []))
    return turns


def test_a_problem_survives_the_way_through_json(some):
    for problem in some:
        assert problems.from_data(json.loads(json.dumps(problems.as_data(problem)))) == problem


def test_gold_and_every_corruption_earn_what_flatline_gives(some):
    seen = set()
    for problem in some:
        for name, script in {"gold": TASK.gold(problem), **TASK.corruptions(problem)}.items():
            seen.add(name)
            theirs = scoring.played(TASK.episode(problem), as_turns(script))
            assert theirs == play(TASK, problem, script), (problem.id, name)
    assert {"gold", "wrong_answer", "malformed_call", "empty"} <= seen


def test_a_play_that_ends_in_a_call_has_no_answer(some):
    script = TASK.gold(some[0])[:-1]
    score = scoring.played(TASK.episode(some[0]), as_turns(script))
    assert score.parts["exact_match"] == 0
    assert score.parts["retrieval_recall"] == 1


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", "[" * 100_000])
def test_arguments_that_are_no_object_are_a_malformed_call(some, arguments):
    episode = TASK.episode(some[0])
    scoring.played(episode, [scoring.Said("", [("retrieve_documents", arguments)])])
    assert episode.events["malformed_calls"] == 1
