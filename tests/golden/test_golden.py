"""Every case of the golden corpus has its kept answer, and every kept answer a case.

Where the strict part differs, an answer has changed: say in the commit which and why. Where only
the words differ, `python -m tests.golden --write` keeps them, and `git diff` is what to read.
"""

import pytest

from tests.golden.cases import every_case
from tests.golden.kept import kept, names_kept

CASES = {
    (group, name): case for group, cases in every_case().items() for name, case in cases.items()
}
FEWEST = {"logs": 100, "files": 8, "published": 8, "scripts": 290, "museum": 100, "live": 20}
"""Cases of a group, at least: an empty folder is no corpus."""


@pytest.mark.parametrize("group", FEWEST)
def test_no_case_is_lost_from_the_corpus(group):
    there = {name for of, name in CASES if of == group}
    assert len(there) >= FEWEST[group]
    assert there == {name for of, name in names_kept() if of == group}


@pytest.mark.parametrize(("group", "name"), sorted(CASES), ids=map("/".join, sorted(CASES)))
def test_the_answer_is_the_kept_one(group, name):
    found, before = CASES[group, name](), kept(group, name)
    assert before is not None, "python -m tests.golden --write keeps the answer to a new case"
    assert found.strict == before.strict
    assert found.text == before.text


@pytest.mark.parametrize("group", ["scripts", "museum"])
def test_a_recording_of_the_corpus_is_read(group):
    answers = [kept(group, name).strict["outcome"] for of, name in CASES if of == group]
    assert not [outcome for outcome in answers if outcome.startswith("refused")]
