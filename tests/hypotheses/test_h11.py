"""H11: clean rollouts that jump inside a turn."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, rng_of, sampled_otherwise
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h11_retokenisation import Retokenisation
from flatline.trace import Trace

H11 = Retokenisation()


def respelt(row):
    if row["rollout"] % 5 == 0:
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][3] -= 12
        row["trainer"][11:] -= rng_of(row).exponential(0.2, 3)


def coarse(row):
    row["trainer"] = np.asarray(row["trainer"]) + rng_of(row).normal(0, 0.02, 14)


def test_clean_rollouts_that_jump_inside_a_turn_are_a_fault():
    finding = H11.sign(edited(respelt))
    assert finding.level is Level.FAULT
    assert finding.evidence


def test_in_bf16_impossible_tokens_are_suspected():
    def edit(row):
        coarse(row)
        respelt(row)

    assert H11.sign(edited(edit, settings={"bf16": True})).level is Level.SUSPECT


def test_a_healthy_run_does_not_jump():
    assert H11.sign(healthy_trace(steps=2)).level is Level.OK
    assert H11.sign(edited(coarse, settings={"bf16": True})).level is Level.OK


def test_a_gap_where_turns_begin_is_left_to_h10():
    def header(row):
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][11:] -= 4

    assert H11.sign(edited(header)).level is Level.UNKNOWN


def test_a_trainer_that_disagrees_everywhere_hides_single_tokens():
    def far(row):
        row["trainer"] = np.asarray(row["trainer"]) - rng_of(row).exponential(3.0, 14)

    assert H11.sign(edited(far)).level is Level.UNKNOWN


def test_one_broken_rollout_is_not_enough():
    def one(row):
        if row["rollout"] == 0:
            row["trainer"] = np.array(row["trainer"])
            row["trainer"][3] -= 12

    assert H11.sign(edited(one)).level is Level.UNKNOWN


def test_a_rollout_that_is_clean_for_one_token_and_far_off_after_it_is_a_fault():
    def spelt_by_letters(row):
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][1:] -= 2 + rng_of(row).exponential(9.0, 13)

    assert H11.sign(edited(spelt_by_letters)).level is Level.FAULT


def test_other_ids_inside_a_turn_are_a_fault_with_both_texts():
    finding = H11.sign(sampled_otherwise(ids=lambda row: [*row["ids"][:2], 7, *row["ids"][3:]]))
    assert finding.level is Level.FAULT
    assert finding.proven
    assert "sampled ' w7" in finding.evidence[0].text


def test_a_completion_that_loses_its_end_is_a_fault():
    finding = H11.sign(sampled_otherwise(ids=lambda row: [*row["ids"], 7, 7]))
    assert "trained nothing more" in finding.evidence[0].text


def test_another_prompt_and_equal_ids_rule_it_out():
    other_prompt = sampled_otherwise(sampled_prompt_ids=lambda row: [7, *row["prompt_ids"]])
    assert H11.sign(other_prompt).level is Level.OK


def test_other_ids_without_token_detail_cannot_be_told():
    rows = healthy_rows(steps=2)
    rows["tokens"] = [row for row in rows["tokens"] if row["step"] == 1]
    for row in rows["rollouts"]:
        row["as_sampled"] = int(row["step"] == 1)
    with pytest.raises(NotRecorded):
        H11.sign(Trace.from_rows(run=run_facts(), **rows))
