"""World: MuSiQue-shaped problems about an invented world."""

import hashlib
import json
import re

import pytest

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


def test_rows_have_the_official_schema(rows):
    for row in rows:
        assert set(row) == OFFICIAL_FIELDS
        assert 10 <= len(row["paragraphs"]) <= 20
        assert [p["idx"] for p in row["paragraphs"]] == list(range(len(row["paragraphs"])))


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
