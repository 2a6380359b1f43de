"""H10: the gap begins where the context differs."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, rng_of, sampled_otherwise
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h10_template_drift import TemplateDrift
from flatline.trace import Trace

H10 = TemplateDrift()


def shifted(*places, size=4.0):
    def edit(row):
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][list(places)] -= size

    return edit


def coarse(row):
    row["trainer"] = np.asarray(row["trainer"]) + rng_of(row).normal(0, 0.02, 14)


def test_a_gap_at_the_start_of_later_turns_is_a_fault():
    finding = H10.sign(edited(shifted(11, 12)))
    assert finding.level is Level.FAULT
    assert finding.evidence[0].step == 1


def test_in_bf16_it_is_suspected():
    def edit(row):
        coarse(row)
        shifted(11, 12)(row)

    assert H10.sign(edited(edit, settings={"bf16": True})).level is Level.SUSPECT


def test_another_prompt_is_suspected():
    def edit(row):
        row["trainer"] = np.asarray(row["trainer"]) - 3 + rng_of(row).normal(0, 3, 14)

    finding = H10.sign(edited(edit))
    assert finding.level is Level.SUSPECT
    assert "prompt" in finding.text


def test_a_healthy_run_agrees_in_both_precisions():
    assert H10.sign(healthy_trace(steps=2)).level is Level.OK
    assert H10.sign(edited(coarse, settings={"bf16": True})).level is Level.OK


def test_a_temperature_is_not_another_prompt():
    def hotter(row):
        row["trainer"] = np.asarray(row["trainer"]) * 1.5

    assert H10.sign(edited(hotter)).level is Level.UNKNOWN


def test_noise_is_not_another_prompt():
    def noisy(row):
        row["prompt_ids"], row["ids"] = np.zeros(6, int), np.arange(14)
        row["trainer"] = np.asarray(row["trainer"]) - rng_of(row).exponential(1.0, 14)

    assert H10.sign(edited(noisy)).level is Level.UNKNOWN


def test_a_jump_inside_a_turn_is_left_to_h11():
    def some(row):
        if row["rollout"] % 4 == 0:
            shifted(13)(row)

    assert H10.sign(edited(some)).level is Level.OK


def test_single_turns_and_runs_that_start_late_cannot_be_told():
    def one_turn(row):
        row["trained"] = np.where(np.arange(14) < 4, row["trained"], 0)

    assert H10.sign(edited(one_turn)).level is Level.OK
    with pytest.raises(NotRecorded):
        H10.sign(edited(lambda row: row.pop("trainer")))


def test_clean_first_tokens_prove_the_prompt():
    def respelt(row):
        row["trainer"] = np.array(row["trainer"])
        row["trainer"][1:] -= rng_of(row).exponential(9.0, 13)

    assert H10.sign(edited(respelt)).level is Level.OK


def test_another_prompt_than_was_sampled_after_is_a_fault_with_both_texts():
    finding = H10.sign(sampled_otherwise(sampled_prompt_ids=lambda row: [7, *row["prompt_ids"]]))
    assert finding.level is Level.FAULT
    assert finding.proven
    assert "sampled ' w7" in finding.evidence[0].text


def test_a_header_that_the_trainer_lacks_is_a_fault():
    def with_header(row):
        return [*row["ids"][:11], 7, 7, *row["ids"][11:]]

    assert "192 differ where a turn begins" in H10.sign(sampled_otherwise(ids=with_header)).text


def test_equal_ids_rule_it_out_whatever_the_log_probs_say():
    rows = healthy_rows(steps=2)
    for row in rows["tokens"]:
        row["trainer"] = np.asarray(row["trainer"]) - 5
    assert H10.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK


def test_other_words_inside_a_turn_are_left_to_h11():
    finding = H10.sign(sampled_otherwise(ids=lambda row: [*row["ids"][:2], 7, *row["ids"][2:]]))
    assert finding.level is Level.OK


def test_a_rare_slip_is_only_noted():
    once = {"ids": lambda row: [*row["ids"][:11], 7], "every": 192}
    assert H10.sign(sampled_otherwise(**once)).level is Level.NOTE
