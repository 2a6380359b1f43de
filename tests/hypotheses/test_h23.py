"""H23: the same tokens get another log-prob in every pass."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, levels_of, rng_of, subject

from flatline.hypotheses.base import Level
from flatline.hypotheses.h23_dropout_in_scoring import DropoutInScoring
from flatline.live.records import ScoredTwice

H23 = DropoutInScoring()


def alike(row):
    """All rollouts begin with the same four tokens at the same log-probs, and then part."""
    row["prompt_ids"] = np.full(6, row["rollout"] // 8)
    row["ids"] = np.concatenate([np.arange(4), 100 + row["rollout"] + np.arange(10)])
    row["trainer"] = np.concatenate([[-0.5, -1, -0.2, -2], row["trainer"][4:]])


def noisy(size):
    def edit(row):
        alike(row)
        row["trainer"] = row["trainer"] + rng_of(row).normal(0, size, 14)

    return edit


def twice(agreement=1.0, settings=None, **values):
    measured = dict.fromkeys(ScoredTwice.__dataclass_fields__, 0.0) | values
    return H23.probe(
        subject(
            scored_twice=lambda: ScoredTwice(**measured),
            gradient_twice=lambda: agreement,
            settings=settings or {"precision": "float32"},
        )
    )


def far(row):
    alike(row)
    row["trainer"] = row["trainer"] - 5


def forget(row):
    noisy(0.3)(row)
    row["prompt_ids"] = row["prompt_attended"] = None


def test_the_same_tokens_at_another_step_may_be_scored_otherwise():
    def learn(row):
        alike(row)
        row["prompt_ids"] = np.zeros(6, int)
        row["trainer"] = row["trainer"] + row["step"]

    assert H23.sign(edited(learn)).measured.value == 0


def masked(row):
    noisy(3.0)(row)
    row["trained"] = np.zeros(14, int)


@pytest.mark.parametrize(("noise", "iterations", "level"), [
    (0.3, 1, Level.NOTE), (0.05, 2, Level.NOTE), (1.0, 2, Level.FAULT),
])  # fmt: skip
def test_dropout_that_was_asked_for_counts_where_it_reaches_a_ratio(noise, iterations, level):
    settings = {"lora": {"dropout": 0.1}, "num_iterations": iterations, "epsilon": 0.2}
    assert H23.sign(edited(noisy(noise), settings=settings)).level is level


@pytest.mark.parametrize(("values", "level"), [
    ({}, Level.OK),
    ({"scoring": 0.4, "trained": 0.4}, Level.FAULT),
    ({"trained": 0.2}, Level.FAULT),
    ({"moved_scoring": 6.1, "moved_trained": 6.3, "dropout": 0.1}, Level.NOTE),
    ({"trained": 3.0, "scoring": 3.0, "dropout": 0.5, "agreement": 0.1}, Level.FAULT),
    ({"trained": 3.0, "dropout": 0.1, "agreement": float("nan")}, Level.NOTE),
])  # fmt: skip
def test_two_identical_passes_must_agree_or_cost_little(values, level):
    assert twice(**{"agreement": 0.9, **values}).level is level


def test_rollouts_that_are_trained_after_an_update_are_compared_before_it():
    def later(row):
        alike(row)
        row["old"] = np.array(row["trainer"])
        row["trainer"] = row["trainer"] - 0.3 * (row["rollout"] % 2)

    dealt_out = {"steps_per_generation": 4, "gradient_accumulation_steps": 1}
    assert H23.sign(edited(later, settings=dealt_out)).level is Level.OK
    assert H23.sign(edited(later)).level is Level.FAULT


test_levels_of_the_sign = levels_of(H23.sign, {
    "equal beginnings with unequal log probs": ("fault", lambda: edited(noisy(0.3))),
    "a little noise is noted in float32 and ignored in bf16": ("note", lambda: edited(noisy(0.01))),
    "a little noise is noted in float32 and ignored in bf16 (2)": ("ok",
        lambda: edited(noisy(0.01), settings={"bf16": True})),
    "a healthy run scores equal beginnings alike": ("ok", lambda: edited(alike)),
    "another context for all is not noise": ("ok", lambda: edited(far)),
    "a trace without prompts": ("unknown", lambda: edited(forget)),
    "rows without loss are not judged": ("unknown", lambda: edited(masked)),
    "a clip that lets no ratio move leaves noise no room": ("note",
        lambda: edited(noisy(0.05), settings={**{"lora": {"dropout": 0.1},
            "num_iterations": 2}, "epsilon": 0.2})),
    "a clip that lets no ratio move leaves noise no room (2)": ("fault",
        lambda: edited(noisy(0.05), settings={**{"lora": {"dropout": 0.1},
            "num_iterations": 2}, "epsilon": 0.0})),
})  # fmt: skip

test_levels = levels_of(None, {
    "what a precision rounds is no dropout": ("fault", lambda: twice(scoring=0.01)),
    "what a precision rounds is no dropout (2)": ("ok",
        lambda: twice(scoring=0.01, settings={"precision": "tf32"})),
    "a batch without trained tokens": ("unknown",
        lambda: twice(**dict.fromkeys(ScoredTwice.__dataclass_fields__, float("nan")))),
})  # fmt: skip
