"""H02: the loss mask is 1 exactly on what the model wrote."""

import numpy as np
from tests.hypotheses.edited import edited, levels_of
from tests.traces import M, T

from flatline.hypotheses.base import Level
from flatline.hypotheses.h02_token_masking import TokenMasking

H02 = TokenMasking()


def drop_ends(row):
    row["trained"] = np.array(row["trained"])
    row["trained"][[3, 13]] = 0


def drop_last_turn(row):
    if row["rollout"] % 2:
        row["trained"] = np.array(row["trained"])
        row["trained"][11:] = 0


def claim_all(row):
    row["author"] = np.full(14, int(M), np.uint8)
    row["trained"] = np.ones(14, np.uint8)


def invert(row):
    """As whoever reads `env_mask` as "the environment wrote it" gives it; TRL knows the authors by
    it alone."""
    row["trained"] = 1 - np.asarray(row["trained"])
    row["author"] = np.where(row["trained"], int(M), int(T)).astype(np.uint8)


def test_an_inverted_mask_is_proved_by_what_the_sampler_drew():
    finding = H02.sign(edited(invert))
    assert finding.level is Level.FAULT and finding.proven
    assert {"H10", "H20"} <= set(finding.explains)


def test_an_inverted_mask_is_also_known_where_the_sampler_gives_nothing_for_other_tokens():
    def invert_without_zeros(row):
        invert(row)
        row["sampler"] = np.where(np.asarray(row["trained"]) == 1, np.nan, row["sampler"])

    assert "the mask is inverted" in H02.sign(edited(invert_without_zeros)).text


def greedy(row):
    row["sampler"] = np.zeros(14, np.float32)
    row["trainer"] = np.full(14, -2.0, np.float32)


def other_context(row):
    invert(row)
    row["trainer"] = np.asarray(row["sampler"]) - 4.0


def blind(row):
    row["sampler"] = np.where(np.arange(14) % 7 < 3, 0.0, row["sampler"])
    row["trainer"] = np.asarray(row["trainer"]) - 4.0


test_levels_of_the_sign = levels_of(H02.sign, {
    "a shifted mask is called shifted": ("fault",
        lambda: edited(lambda row: row.update(trained=np.concatenate([[0], row["trained"][:-1]])))),
    "an end of turn that is never trained": ("fault", lambda: edited(drop_ends)),
    "model turns without loss": ("suspect", lambda: edited(drop_last_turn)),
    "rollouts that are masked as a whole are meant to be": ("ok",
        lambda: edited(
            lambda row: row["rollout"] % 4 == 0 and row.update(trained=np.zeros(14, np.uint8)))),
    "a run without any trained token": ("unknown",
        lambda: edited(lambda row: row.update(trained=np.zeros(14, np.uint8)))),
    "unknown authors are not accused": ("ok",
        lambda: edited(
            lambda row: row.update(author=None if row["rollout"] % 2 else row["author"]))),
    "stretches that were never sampled are found where the mask is all there is": ("fault",
        lambda: edited(claim_all)),
    "a greedy sampler that gives zero for all it drew is no inverted mask": ("ok",
        lambda: edited(greedy)),
    "a sampler that gives log probs of masked tokens too is no inverted mask": ("ok",
        lambda: edited(lambda row: row.update(sampler=np.where(np.asarray(row["trained"]) == 1,
            row["sampler"], -2.0)))),
    "a mask that follows no sampler is not called inverted": ("ok", lambda: edited(other_context)),
    "a blind trainer does not look like trained tool tokens": ("ok", lambda: edited(blind)),
    "a mask that breaks in the second half is found": ("fault",
        lambda: edited(lambda row: row["step"] > 50 and row.update(trained=np.ones(14,
            np.uint8)), steps=100)),
    "trained tool tokens are a fault and are quoted": ("fault",
        lambda: edited(lambda row: row.update(trained=np.ones(14, np.uint8)))),
})  # fmt: skip
