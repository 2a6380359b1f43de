"""H10: the gap begins where the context differs."""

import numpy as np
from tests.hypotheses.edited import altered, edited, levels_of, rng_of, sampled_otherwise

from flatline.hypotheses.base import Level
from flatline.hypotheses.h10_template_drift import TemplateDrift

H10 = TemplateDrift()


def shifted(*places, size=4.0):
    def edit(row):
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][list(places)] -= size

    return edit


def coarse(row):
    row["trainer"] = np.asarray(row["trainer"]) + rng_of(row).normal(0, 0.02, 14)


def edit(row):
    coarse(row)
    shifted(11, 12)(row)


def noisy(row):
    row["prompt_ids"], row["ids"] = (np.zeros(6, int), np.arange(14))
    row["trainer"] = np.asarray(row["trainer"]) - rng_of(row).exponential(1.0, 14)


def respelt(row):
    row["trainer"] = np.array(row["trainer"])
    row["trainer"][1:] -= rng_of(row).exponential(9.0, 13)


def test_another_prompt_than_was_sampled_after_is_a_fault_with_both_texts():
    finding = H10.sign(sampled_otherwise(sampled_prompt_ids=lambda row: [7, *row["prompt_ids"]]))
    assert finding.level is Level.FAULT
    assert finding.proven


test_levels_of_the_sign = levels_of(H10.sign, {
    "a gap at the start of later turns": ("fault", lambda: edited(shifted(11, 12))),
    "in bf16 it": ("suspect", lambda: edited(edit, settings={"bf16": True})),
    "a healthy run agrees in both precisions (2)": ("ok",
        lambda: edited(coarse, settings={"bf16": True})),
    "a temperature is not another prompt": ("unknown",
        lambda: edited(lambda row: row.update(trainer=np.asarray(row["trainer"]) * 1.5))),
    "noise is not another prompt": ("unknown", lambda: edited(noisy)),
    "a jump inside a turn is left to h11": ("ok",
        lambda: edited(lambda row: row["rollout"] % 4 == 0 and shifted(13)(row))),
    "single turns and runs that start late": ("ok",
        lambda: edited(lambda row: row.update(trained=np.where(np.arange(14) < 4,
            row["trained"], 0)))),
    "clean first tokens prove the prompt": ("ok", lambda: edited(respelt)),
    "a header that the trainer lacks": ("fault",
        lambda: sampled_otherwise(ids=lambda row: [*row["ids"][:11], 7, 7, *row["ids"][11:]])),
    "equal ids rule it out whatever the log probs say": ("ok",
        lambda: altered("tokens",
            lambda row: row.update(trainer=np.asarray(row["trainer"]) - 5), steps=2)),
    "another prompt": ("suspect",
        lambda: edited(lambda row: row.update(
            trainer=np.asarray(row["trainer"]) - 3 + rng_of(row).normal(0, 3, 14)))),
    "other words inside a turn are left to h11": ("ok",
        lambda: sampled_otherwise(ids=lambda row: [*row["ids"][:2], 7, *row["ids"][2:]])),
    "a rare slip": ("note",
        lambda: sampled_otherwise(**{"ids": lambda row: [*row["ids"][:11], 7], "every": 192})),
})  # fmt: skip
