"""H46 evaluation-leak."""

from types import SimpleNamespace

import pytest
from datasets import Dataset
from tests.hypotheses.edited import levels_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h46_evaluation_leak import EvaluationLeak
from flatline.live.trl.measure.order import problems
from flatline.trace import Trace

H = EvaluationLeak()


def sign(**requested):
    given = {"datasets": "lab", "eval_datasets": None, "eval_limit": 64, **requested}
    return H.sign(Trace.from_rows(run={"requested": given}))


def stock(train, heldout):
    made = [None if t is None else Dataset.from_dict({"prompt": t}) for t in (train, heldout)]
    trainer = SimpleNamespace(train_dataset=made[0], eval_dataset=made[1])
    return SimpleNamespace(problems=lambda: problems(trainer))


@pytest.mark.parametrize(
    "heldout", ["lab,,train", "lab,,train[:100]", "other,,dev;lab,,train[10:20]"]
)
def test_a_split_that_is_trained_on_and_held_out_is_a_fault(heldout):
    assert sign(eval_datasets=heldout).level is Level.FAULT


@pytest.mark.parametrize("heldout", [None, "lab", "lab,,validation", "lab,,test", "other,,train"])
def test_other_splits_are_ruled_out(heldout):
    assert sign(eval_datasets=heldout).level is Level.OK


def test_a_prompt_that_most_rows_share_names_no_problem():
    game = "Play Wordle like an expert."
    assert H.probe(stock([game] * 40, [game] * 4)).level is Level.UNKNOWN
    # Held-out problems that are played several times each are problems all the same.
    assert H.probe(stock(["a", "b"], ["b"] * 8)).level is Level.FAULT


def test_the_probe_is_not_concerned_where_nothing_is_held_out():
    assert H.probe(stock(["a"], None)).level is Level.OK
    with pytest.raises(NotRecorded):
        bare = SimpleNamespace(train_dataset=[1], eval_dataset=[1])
        H.probe(SimpleNamespace(problems=lambda: problems(bare)))


test_levels = levels_of(None, {
    "two slices of one split may be apart": ("ok",
        lambda: sign(datasets="d,,train[:50]", eval_datasets="d,,train[50:]")),
    "two slices of one split may be apart (2)": ("unknown",
        lambda: sign(datasets="d,,train[:50]", eval_datasets="d,,train[40:60]")),
    "two slices of one split may be apart (3)": ("fault",
        lambda: sign(datasets="d,,train[:50]", eval_datasets="d,,train[:50]")),
    "a run that holds nothing out is not concerned": ("ok", lambda: sign(eval_limit=0)),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "the probe looks for held out problems in the training data": ("fault",
        lambda: stock(["a", "b"], ["c", "b"])),
    "the probe looks for held out problems in the training data (2)": ("ok",
        lambda: stock(["a", "b"], ["c", "d"])),
})  # fmt: skip
