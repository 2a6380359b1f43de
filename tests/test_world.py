"""World: MuSiQue-shaped problems about an invented world."""

import hashlib
import json
import re
from collections import Counter

import pytest

from flatline.errors import DataError
from flatline.tasks import world
from flatline.tasks.names import HEADS, TAILS, split_of

NAMES = re.compile(rf"(?:{'|'.join(HEADS)})(?:{'|'.join(TAILS)})")
OFFICIAL_FIELDS = {
    "id",
    "paragraphs",
    "question",
    "question_decomposition",
    "answer",
    "answer_aliases",
    "answerable",
}


@pytest.fixture(scope="module")
def rows():
    return world.rows("validation", 0, 400)


def digest(made):
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()


def test_the_same_seed_gives_the_same_bytes(rows):
    assert digest(world.rows("validation", 0, 400)) == digest(rows)
    assert digest(rows[:20]).startswith("4973240da522")


def test_another_seed_gives_other_problems():
    assert world.row("train", 0) != world.row("train", 0, seed=1)


def test_a_slice_equals_the_same_part_of_the_whole(rows):
    assert world.rows("validation", 100, 120) == rows[100:120]


def test_rows_have_the_official_schema(rows):
    for row in rows:
        assert set(row) == OFFICIAL_FIELDS
        assert 10 <= len(row["paragraphs"]) <= 20
        assert [p["idx"] for p in row["paragraphs"]] == list(range(len(row["paragraphs"])))


def test_all_six_decomposition_shapes_occur_with_their_dependencies(rows):
    shapes = Counter()
    for row in rows:
        shape = row["id"].split("__")[0]
        needs = tuple(
            tuple(int(n) - 1 for n in re.findall(r"#(\d)", step["question"]))
            for step in row["question_decomposition"]
        )
        assert needs == world.SHAPES[shape]
        shapes[shape] += 1
    assert set(shapes) == set(world.SHAPES)


def test_each_hop_is_answered_by_its_supporting_paragraph_alone(rows):
    for row in rows:
        answers = []
        for step in row["question_decomposition"]:
            paragraph = row["paragraphs"][step["paragraph_support_idx"]]
            assert paragraph["is_supporting"]
            assert step["answer"] in paragraph["paragraph_text"]
            answers.append(step["answer"])
        assert answers[-1] == row["answer"]
        supporting = [p["idx"] for p in row["paragraphs"] if p["is_supporting"]]
        assert len(supporting) == len(row["question_decomposition"])


def test_the_question_names_no_answer_of_a_hop(rows):
    for row in rows:
        assert not [s for s in row["question_decomposition"] if s["answer"] in row["question"]]


def test_titles_are_unique_and_distractors_hold_the_relations_of_the_solution(rows):
    for row in rows:
        titles = [p["title"] for p in row["paragraphs"]]
        assert len(set(titles)) == len(titles)
        relations = [hop.relation for hop in world.solution(row["id"])]
        starts = tuple(f.partition("{")[0].strip() for r in relations for f in r.facts)
        distractors = [p["paragraph_text"] for p in row["paragraphs"] if not p["is_supporting"]]
        assert any(start in text for text in distractors for start in starts)


def test_splits_share_no_names():
    seen = {
        split: set(NAMES.findall(json.dumps(world.rows(split, 0, 100)))) for split in world.SIZES
    }
    assert all(seen.values())
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]
    assert all(split_of(name) == split for split, names in seen.items() for name in names)


def test_an_unanswerable_twin_asks_the_same_and_lacks_one_fact():
    rows = world.rows("train", 0, 100, config="full")
    for original, twin in zip(rows[::2], rows[1::2], strict=True):
        assert twin["id"] == original["id"]
        assert (original["answerable"], twin["answerable"]) == (True, False)
        assert twin["question"] == original["question"]
        changed = [
            (before, after)
            for before, after in zip(original["paragraphs"], twin["paragraphs"], strict=True)
            if before != after
        ]
        assert len(changed) == 1
        before, after = changed[0]
        assert (before["is_supporting"], after["is_supporting"]) == (True, False)
        assert before["title"] not in [p["title"] for p in twin["paragraphs"]]
        supports = [s["paragraph_support_idx"] for s in twin["question_decomposition"]]
        assert supports.count(None) == 1
        assert before["idx"] not in supports


def test_an_unknown_split_or_config_is_named_with_what_exists():
    with pytest.raises(DataError, match=r"no split 'dev'.*train, validation, test"):
        world.rows("dev", 0, 1)
    with pytest.raises(DataError, match="no config 'ans'"):
        world.rows("train", 0, 1, config="ans")
