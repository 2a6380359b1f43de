"""H10: the gap begins where the context differs."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, rng_of, without
from tests.traces import healthy_trace

from flatline.errors import NotRecorded
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

    assert H10.sign(edited(hotter)).level is Level.OK


def test_noise_is_not_another_prompt():
    def noisy(row):
        row["prompt_ids"], row["ids"] = np.zeros(6, int), np.arange(14)
        row["trainer"] = np.asarray(row["trainer"]) - rng_of(row).exponential(1.0, 14)

    assert H10.sign(edited(noisy)).level is Level.OK


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
        H10.sign(without("tokens", "trainer"))
