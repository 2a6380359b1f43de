"""H11: clean rollouts that jump inside a turn."""

import numpy as np
from tests.hypotheses.edited import edited, levels_of, rng_of, sampled_otherwise

from flatline.hypotheses.base import Level
from flatline.hypotheses.h11_retokenisation import Retokenisation

H11 = Retokenisation()


def respelt(row):
    if row["rollout"] % 5 == 0:
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][3] -= 12
        row["trainer"][11:] -= rng_of(row).exponential(0.2, 3)


def coarse(row):
    row["trainer"] = np.asarray(row["trainer"]) + rng_of(row).normal(0, 0.02, 14)


def edit(row):
    coarse(row)
    respelt(row)


def header(row):
    row["trainer"] = np.array(row["trainer"])
    row["trainer"][11:] -= 4


def one(row):
    if row["rollout"] == 0:
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][3] -= 12


def spelt_by_letters(row):
    row["trainer"] = np.array(row["trainer"])
    row["trainer"][1:] -= 2 + rng_of(row).exponential(9.0, 13)


def test_other_ids_inside_a_turn_are_a_fault_with_both_texts():
    finding = H11.sign(sampled_otherwise(ids=lambda row: [*row["ids"][:2], 7, *row["ids"][3:]]))
    assert finding.level is Level.FAULT
    assert finding.proven


test_levels_of_the_sign = levels_of(H11.sign, {
    "clean rollouts that jump inside a turn": ("fault", lambda: edited(respelt)),
    "in bf16 impossible tokens": ("suspect", lambda: edited(edit, settings={"bf16": True})),
    "a healthy run does not jump (2)": ("ok", lambda: edited(coarse, settings={"bf16": True})),
    "a gap where turns begin is left to h10": ("unknown", lambda: edited(header)),
    "a trainer that disagrees everywhere hides single tokens": ("unknown",
        lambda: edited(lambda row: row.update(
            trainer=np.asarray(row["trainer"]) - rng_of(row).exponential(3.0, 14)))),
    "one broken rollout is not enough": ("unknown", lambda: edited(one)),
    "a rollout that is clean for one token and far off after it": ("fault",
        lambda: edited(spelt_by_letters)),
    "another prompt and equal ids rule it out": ("ok",
        lambda: sampled_otherwise(sampled_prompt_ids=lambda row: [7, *row["prompt_ids"]])),
})  # fmt: skip
