"""The gold check: silent on sound rewards, and loud on unsound ones."""

import json

import pytest

from flatline.tasks.base import Score
from flatline.tasks.check import check
from flatline.tasks.gsm8k import GSM8K
from flatline.tasks.musique import WEIGHTS, Musique, MusiqueEpisode
from flatline.tasks.toolmath import ToolMath
from tests.musique_rows import REAL, row, twin, write

needs_real_data = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
CORRUPTIONS = {
    "wrong_answer",
    "bridge_entity",
    "cite_everything",
    "dump_all_documents",
    "missing_tag",
    "empty",
    "malformed_call",
}


def problems(tmp_path, *rows, config="full"):
    path = write(tmp_path / "rows.jsonl", *(rows or (row(),)))
    return Musique().load(f"{path},{config}", split="train")


def report(task, found):
    return check(task, found).to_json()


def test_gold_earns_the_maximum_and_every_corruption_less(tmp_path):
    task = Musique(retriever="golden")
    found = problems(tmp_path, row(), twin())
    assert set(task.corruptions(found[0])) == CORRUPTIONS
    assert report(task, found) == {"problems": 2, "violations": [], "ceiling": None}


def test_a_reward_that_forgets_a_part_is_found_out(tmp_path):
    task = Musique(weights={**WEIGHTS, "citation": 0, "retrieval_precision": 0})
    found = check(task, problems(tmp_path))
    assert [v.script for v in found.violations] == ["cite_everything", "dump_all_documents"]
    first = found.violations[0]
    assert (first.problem, first.reward, first.gold_reward) == ("2hop__1_2", 1.0, 1.0)
    assert first.why == "cite everything earns no less than gold"
    assert not found.passed


def test_a_reward_that_gold_cannot_earn_is_found_out(tmp_path, monkeypatch):
    never = Score(reward=0.0, parts={"exact_match": 0.0, "format": 1.0})
    monkeypatch.setattr(MusiqueEpisode, "score", lambda self, final: never)
    found = check(Musique(), problems(tmp_path)).violations
    assert found[0].script == "gold"
    assert found[0].why == "gold does not earn the maximum: exact_match is 0"
    assert {v.script for v in found} == {"gold"} | CORRUPTIONS


def test_the_ceiling_is_the_recall_of_the_sub_questions_by_hop_count(tmp_path):
    vague = row(id="vague")
    vague["question_decomposition"][0]["question"] = "zebra"
    found = report(Musique(), problems(tmp_path, row(), vague))
    half_found = {"value": 0.75, "n": 2}  # the vague problem reaches one of its two paragraphs
    assert found["ceiling"] == {
        "retriever": "bm25",
        "top_n": 2,
        "recall": half_found,
        "per_hop": {2: half_found},
    }
    assert found["violations"] == []
    json.dumps(found)


@pytest.mark.parametrize("task", [GSM8K(), ToolMath(), Musique()], ids=lambda task: task.name)
def test_every_task_passes_on_its_built_in_problems(task):
    found = check(task, task.load("lab,,validation[:100]", split="validation"))
    assert found.problems == 100
    assert found.violations == []


@needs_real_data
@pytest.mark.parametrize(
    ("spec", "count"),
    [("train.jsonl", 446), ("validation.jsonl", 100), ("train_unanswerable.jsonl,full", 50)],
)
def test_every_real_problem_is_sound(spec, count):
    task = Musique()
    found = check(task, task.load(f"{REAL}/{spec}", split="train"))
    assert (found.problems, found.violations) == (count, [])
    assert found.ceiling is not None
    assert 0.8 < found.ceiling.recall.value < 1
