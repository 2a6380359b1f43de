"""H02: the loss mask is 1 exactly on what the model wrote."""

import numpy as np
from tests.hypotheses.edited import edited, model_tokens
from tests.traces import M, T, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h02_token_masking import TokenMasking
from flatline.trace import Trace

H02 = TokenMasking()


def test_trained_tool_tokens_are_a_fault_and_are_quoted():
    def train_all(row):
        row["trained"] = np.ones(14, np.uint8)

    finding = H02.sign(edited(train_all))
    assert finding.level is Level.FAULT
    assert "carries loss" in finding.evidence[0].text


def test_a_shifted_mask_is_called_shifted():
    def shift(row):
        row["trained"] = np.concatenate([[0], row["trained"][:-1]])

    assert "shifted" in H02.sign(edited(shift)).text


def test_an_end_of_turn_that_is_never_trained_is_a_fault():
    def drop_ends(row):
        row["trained"] = np.array(row["trained"])
        row["trained"][[3, 13]] = 0

    finding = H02.sign(edited(drop_ends))
    assert finding.level is Level.FAULT
    assert "the last of most turns" in finding.text


def test_model_turns_without_loss_are_suspected():
    def drop_last_turn(row):
        if row["rollout"] % 2:
            row["trained"] = np.array(row["trained"])
            row["trained"][11:] = 0

    assert H02.sign(edited(drop_last_turn)).level is Level.SUSPECT


def test_a_healthy_run_trains_what_the_model_wrote():
    assert H02.sign(healthy_trace(steps=3)).level is Level.OK


def test_rollouts_that_are_masked_as_a_whole_are_meant_to_be():
    def mask_truncated(row):
        if row["rollout"] % 4 == 0:
            row["trained"] = np.zeros(14, np.uint8)

    assert H02.sign(edited(mask_truncated)).level is Level.OK


def test_a_run_without_any_trained_token_cannot_be_told():
    def mask_all(row):
        row["trained"] = np.zeros(14, np.uint8)

    assert H02.sign(edited(mask_all)).level is Level.UNKNOWN


def test_unknown_authors_are_not_accused():
    def forget(row):
        row["author"] = None if row["rollout"] % 2 else row["author"]

    assert H02.sign(edited(forget)).level is Level.OK


def test_stretches_that_were_never_sampled_are_found_where_the_mask_is_all_there_is():
    def claim_all(row):
        row["author"] = np.full(14, int(M), np.uint8)
        row["trained"] = np.ones(14, np.uint8)

    finding = H02.sign(edited(claim_all))
    assert finding.level is Level.FAULT
    assert "never sampled" in finding.text


def invert(row):
    """As whoever reads `env_mask` as "the environment wrote it" gives it; TRL knows the authors by
    it alone."""
    row["trained"] = 1 - np.asarray(row["trained"])
    row["author"] = np.where(row["trained"], int(M), int(T)).astype(np.uint8)


def test_an_inverted_mask_is_proved_by_what_the_sampler_drew():
    finding = H02.sign(edited(invert))
    assert finding.level is Level.FAULT and finding.proven
    assert "the mask is inverted" in finding.text and "inverted" in finding.headline
    assert "drawn by nobody, carries loss" in finding.evidence[0].text
    assert {"H10", "H20"} <= set(finding.explains)


def test_an_inverted_mask_is_also_known_where_the_sampler_gives_nothing_for_other_tokens():
    def invert_without_zeros(row):
        invert(row)
        row["sampler"] = np.where(np.asarray(row["trained"]) == 1, np.nan, row["sampler"])

    assert "the mask is inverted" in H02.sign(edited(invert_without_zeros)).text


def test_a_greedy_sampler_that_gives_zero_for_all_it_drew_is_no_inverted_mask():
    def greedy(row):
        row["sampler"] = np.zeros(14, np.float32)
        row["trainer"] = np.full(14, -2.0, np.float32)

    assert H02.sign(edited(greedy)).level is Level.OK


def test_a_sampler_that_gives_log_probs_of_masked_tokens_too_is_no_inverted_mask():
    def scores_all(row):
        row["sampler"] = np.where(np.asarray(row["trained"]) == 1, row["sampler"], -2.0)

    assert H02.sign(edited(scores_all)).level is Level.OK


def test_a_mask_that_follows_no_sampler_is_not_called_inverted():
    def other_context(row):
        invert(row)
        row["trainer"] = np.asarray(row["sampler"]) - 4.0

    assert H02.sign(edited(other_context)).level is Level.OK


def test_a_blind_trainer_does_not_look_like_trained_tool_tokens():
    def blind(row):
        row["sampler"] = np.where(np.arange(14) % 7 < 3, 0.0, row["sampler"])
        row["trainer"] = np.asarray(row["trainer"]) - 4.0

    assert H02.sign(edited(blind)).level is Level.OK


def test_a_single_rollout_of_one_tool_token_is_no_problem():
    rollout = {"step": 1, "rollout": 0, "group": 0}
    tokens = {"step": 1, "rollout": 0, "ids": [1], "author": [int(T)], "trained": [0]}
    trace = Trace.from_rows(run=run_facts(), rollouts=[rollout], tokens=[tokens])
    assert H02.sign(trace).level is Level.UNKNOWN
    assert model_tokens(tokens).size == 0


def test_it_says_in_how_many_steps_it_looked():
    assert "in 8 of 20 steps" in H02.sign(healthy_trace(steps=20)).text
    assert "steps" not in H02.sign(healthy_trace(steps=3)).text


def test_a_mask_that_breaks_in_the_second_half_is_found():
    def train_all_later(row):
        if row["step"] > 50:
            row["trained"] = np.ones(14, np.uint8)

    assert H02.sign(edited(train_all_later, steps=100)).level is Level.FAULT
