"""What the reward owes to the tool: episodes replayed with other tool output."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers.utils import logging
from typer.testing import CliRunner

from flatline.cli import app
from flatline.config import RunConfig
from flatline.diagnosis.counterfactual import (
    EMPTY,
    GOLD,
    SHUFFLED,
    ToolUse,
    tool_use,
    with_tool_use,
)
from flatline.diagnosis.report import Report
from flatline.hypotheses.base import Level
from flatline.stats import Estimate
from flatline.tasks import make_task
from flatline.tasks.altered import Altered, empty, gold_observations
from flatline.tasks.base import BadToolCall, Observation, ToolCall
from flatline.training.trainer import build

torch.set_num_threads(1)
logging.disable_progress_bar()

NONE = Estimate(0.0, -0.02, 0.02, 64)
TINY = RunConfig(
    datasets="lab,,train[:24]", eval_limit=24, batch_size=16, num_generations=4, max_steps=1
)


def use(*, lost=-0.4, gold=0.0, calls=2.0, documents=True) -> ToolUse:
    def change(value: float) -> Estimate:
        return Estimate(value, value - 0.02, value + 0.02, 64)

    return ToolUse(
        task="musique",
        reward=Estimate(0.6, 0.5, 0.7, 64),
        changes={EMPTY: change(lost), SHUFFLED: change(lost), GOLD: change(gold)},
        right={EMPTY: NONE, SHUFFLED: NONE, GOLD: NONE},
        calls=calls,
        documents=documents,
    )


def search(text: str) -> ToolCall:
    return ToolCall(name="retrieve_documents", arguments={"query": text})


# -- the task with other output ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["musique", "toolmath"])
def test_gold_output_is_what_the_calls_of_the_gold_script_bring_back(name):
    task = make_task(name)
    problem = task.load("lab,,train[:1]", split="train")[0]
    shown = gold_observations(task, problem)
    assert len(shown) == len(task.gold(problem)) - 1
    if name == "toolmath":
        assert shown[-1].text == problem.answer
    else:
        seen = {id for observation in shown for id in observation.documents}
        assert set(problem.supporting) <= seen


def test_only_what_the_model_reads_is_exchanged():
    task = make_task("musique")
    problem = task.load("lab,,train[:1]", split="train")[0]
    plain, altered = task.episode(problem), Altered(task, empty).episode(problem)
    for call in task.gold(problem)[:-1]:
        assert plain.observe(call).text
        assert altered.observe(call).text == ""
    final = task.gold(problem)[-1]
    assert altered.score(final) == plain.score(final), "the calls were run and are scored"
    assert altered.events == plain.events


def test_errors_stay_errors_and_do_not_count_as_answers():
    task, seen = make_task("musique"), []
    problem = task.load("lab,,train[:1]", split="train")[0]

    def reply(problem, answered, found):
        seen.append(answered)
        return Observation(text="other")

    episode = Altered(task, reply).episode(problem)
    assert episode.observe(BadToolCall(text="{", reason="it is no JSON.")).text.startswith("Error")
    assert episode.observe(search(" ")).text.startswith("Error")
    assert [episode.observe(search("who")).text for _ in range(2)] == ["other", "other"]
    assert seen == [0, 1]


def test_an_altered_task_asks_the_same_questions():
    task = make_task("toolmath")
    altered = Altered(task, empty)
    problem = altered.load("lab,,train[:1]", split="train")[0]
    assert altered.messages(problem) == task.messages(problem)
    assert altered.gold(problem) == task.gold(problem)
    assert altered.corruptions(problem) == task.corruptions(problem)
    assert (altered.name, altered.tools) == (task.name, task.tools)


# -- what the differences mean ----------------------------------------------------------------


@pytest.mark.parametrize(("changes", "level", "says"), [
    ({"lost": -0.01}, Level.SUSPECT, "does not use its tool"),
    ({"calls": 0.0}, Level.SUSPECT, "tool"),
    ({"gold": 0.2}, Level.NOTE, "retriever is the ceiling"),
    ({"gold": 0.2, "documents": False}, Level.NOTE, "asking of the tool is the ceiling"),
    ({"gold": 0.0}, Level.NOTE, "reading of it is the ceiling"),
    ({"gold": 0.04}, Level.OK, ""),
])  # fmt: skip
def test_what_is_lost_and_gained_names_the_ceiling(changes, level, says):
    found = use(**changes).finding()
    assert found.level is level and says in found.text


def test_a_task_without_tools_is_not_concerned():
    built = SimpleNamespace(task=make_task("gsm8k"))
    assert tool_use(built) is None
    report = Report(subject="x", findings=(), trend=None)
    (found,) = with_tool_use(report, None, "gsm8k").findings
    assert found.level is Level.OK


# -- a live trainer ---------------------------------------------------------------------------


def weights(built):
    return [weight.detach().clone() for weight in built.trainer.model.parameters()]


@pytest.fixture(scope="module", params=["musique", "toolmath"])
def played(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    built = build(replace(TINY, task=request.param, output_dir=str(folder)))
    before = (weights(built), torch.get_rng_state(), dict(vars(built.rollouts)))
    heard = []
    return built, before, heard, tool_use(built, problems=24, on_play=heard.append)


def test_the_lab_policy_uses_its_tool(played):
    _, _, heard, use = played
    assert len(heard) == 4
    assert use.calls > 1
    assert use.changes[EMPTY].high < 0
    assert use.changes[SHUFFLED].high < 0
    assert use.changes[GOLD].n == 24
    assert not use.unused


def test_the_trainer_is_left_as_it_was(played):
    built, (before, random, engine_side), _, _ = played
    assert all(map(torch.equal, before, weights(built)))
    assert torch.equal(random, torch.get_rng_state())
    assert vars(built.rollouts) == engine_side
    assert not isinstance(built.rollouts.task, Altered)


def test_the_result_is_json(played):
    told = json.loads(json.dumps(played[3].to_json()))
    assert set(told["changes"]) == {"empty", "shuffled", "gold"}
    assert told["finding"]["hypothesis"] == "H43"


def test_checkup_plays_with_other_tool_output_where_it_is_asked_to(monkeypatch):
    asked = {}

    def look(config, *, ladder, tools, budget, say):
        asked.update(ladder=ladder, tools=tools)
        return Report(subject="x", findings=(), trend=None)

    monkeypatch.setattr("flatline.cli.checkup.look", look)
    CliRunner().invoke(app, ["checkup", "musique", "--tools", "--json"])
    assert asked == {"ladder": False, "tools": True}
