"""H21: another temperature, or tokens cut off."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, levels_of, rng_of
from tests.traces import healthy_rows, healthy_trace, run_facts

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


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.2])
def test_a_healthy_run_has_slope_one_at_any_temperature(temperature):
    trace = healthy_trace(steps=1, temperature=temperature, top_p=1, top_k=-1)
    assert H21.sign(trace).level is Level.OK


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


def test_precision_is_not_blamed_for_what_the_samplers_parameters_do():
    trace = bent(0.2, 0.15, repetition_penalty=1.8)
    assert NumericMismatch().sign(trace).level is Level.UNKNOWN
    trace.run["sampling_bent"]["nats"] = 1e-6
    assert NumericMismatch().sign(trace).level is Level.SUSPECT


test_levels_of_the_sign = levels_of(H21.sign, {
    "settings that cut are noted even without tokens": ("note",
        lambda: healthy_trace(steps=1, top_k=20)),
    "settings that cut are noted even without tokens (2)": ("note",
        lambda: Trace.from_rows(run=run_facts(repetition_penalty=1.05))),
    "bf16 noise is no temperature": ("ok",
        lambda: edited(
            lambda row: row.update(trainer=row["trainer"] + rng_of(row).normal(0, 0.03, 14)),
            settings={"bf16": True})),
    "another context is no temperature": ("unknown",
        lambda: edited(lambda row: row.update(
            trainer=row["trainer"] * 0.5 - rng_of(row).exponential(4.0, 14)))),
    "an unasked parameter that changes nothing is nobodys fault": ("ok",
        lambda: bent(0, 1e-7, ["top_k"], top_k=50.0)),
    "a parameter that was asked for is suspected where it takes them far apart": ("suspect",
        lambda: bent(0.2, 0.15, repetition_penalty=1.8)),
    "as far as bf16 would": ("note", lambda: bent(0.02, 0.015, top_p=0.98)),
    "a trainer that is never above the sampler shows tokens cut off": ("suspect",
        lambda: edited(lambda row: row.update(
            trainer=np.asarray(row["trainer"]) - rng_of(row).exponential(0.01, 14)))),
    "few prompts and missing log probs": ("unknown",
        lambda: Trace.from_rows(run=run_facts(), **healthy_rows(steps=1, prompts=2))),
})  # fmt: skip
