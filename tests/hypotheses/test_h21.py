"""H21: another temperature, or tokens cut off."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, rng_of, without
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h20_numeric_mismatch import NumericMismatch
from flatline.hypotheses.h21_sampling_parameters import SamplingParameters
from flatline.trace import Trace

H21 = SamplingParameters()


def scaled(factor):
    def edit(row):
        row["trainer"] = np.asarray(row["trainer"]) * factor

    return edit


@pytest.mark.parametrize(("factor", "word"), [(1.5, "hotter"), (0.7, "colder")])
def test_a_slope_is_a_temperature(factor, word):
    finding = H21.sign(edited(scaled(factor)))
    assert finding.level is Level.SUSPECT
    assert word in finding.text


def test_a_trainer_that_is_never_above_the_sampler_shows_tokens_cut_off():
    def cut(row):
        row["trainer"] = np.asarray(row["trainer"]) - rng_of(row).exponential(0.01, 14)

    finding = H21.sign(edited(cut))
    assert finding.level is Level.SUSPECT
    assert "cuts tokens off" in finding.text


def test_settings_that_cut_are_noted_even_without_tokens():
    assert H21.sign(healthy_trace(steps=1, top_k=20)).level is Level.NOTE
    assert H21.sign(Trace.from_rows(run=run_facts(repetition_penalty=1.05))).level is Level.NOTE


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.2])
def test_a_healthy_run_has_slope_one_at_any_temperature(temperature):
    trace = healthy_trace(steps=1, temperature=temperature, top_p=1, top_k=-1)
    assert H21.sign(trace).level is Level.OK


def test_bf16_noise_is_no_temperature():
    def coarse(row):
        row["trainer"] = np.asarray(row["trainer"]) + rng_of(row).normal(0, 0.03, 14)

    assert H21.sign(edited(coarse, settings={"bf16": True})).level is Level.OK


def test_another_context_is_no_temperature():
    def far(row):
        row["trainer"] = np.asarray(row["trainer"]) * 0.5 - rng_of(row).exponential(4.0, 14)

    assert H21.sign(edited(far)).level is Level.UNKNOWN


def test_few_prompts_and_missing_log_probs_cannot_be_told():
    rows = healthy_rows(steps=1, prompts=2)
    assert H21.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.UNKNOWN
    with pytest.raises(NotRecorded):
        H21.sign(without("tokens", "sampler"))


def bent(off, nats, unasked=(), **parameters):
    """Sampler and trainer apart by so much, of which the sampler's own parameters make `nats`."""

    def apart(row):
        row["trainer"] = np.asarray(row["trainer"]) + rng_of(row).normal(0, off, 14)

    trace = edited(apart) if off else healthy_trace(steps=1)
    trace.run["sampling_bent"] = {"parameters": parameters, "unasked": [*unasked], "nats": nats}
    return trace


@pytest.mark.parametrize(("nats", "named"), [(0.08, True), (1e-6, False), (0.0, False)])
def test_an_unasked_parameter_is_the_reason_where_it_makes_the_gap(nats, named):
    found = H21.sign(bent(0.1, nats, ["repetition_penalty"], repetition_penalty=1.1))
    assert ("`repetition_penalty` 1.1, which no argument asks for" in found.text) is named
    assert (found.level is Level.SUSPECT) is named


def test_an_unasked_parameter_that_changes_nothing_is_nobodys_fault():
    assert H21.sign(bent(0, 1e-7, ["top_k"], top_k=50.0)).level is Level.OK


def test_a_parameter_that_was_asked_for_is_suspected_where_it_takes_them_far_apart():
    far = H21.sign(bent(0.2, 0.15, repetition_penalty=1.8))
    assert far.level is Level.SUSPECT
    assert "draws with `repetition_penalty` 1.8, and the trainer scores without it" in far.text
    assert H21.sign(bent(0.02, 0.015, top_p=0.98)).level is Level.NOTE, "as far as bf16 would"


def test_precision_is_not_blamed_for_what_the_samplers_parameters_do():
    trace = bent(0.2, 0.15, repetition_penalty=1.8)
    found = NumericMismatch().sign(trace)
    assert found.level is Level.UNKNOWN and "see H21" in found.text
    trace.run["sampling_bent"]["nats"] = 1e-6
    assert NumericMismatch().sign(trace).level is Level.SUSPECT
