"""H20: sampler and trainer differ at equal weights, for no other reason."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, model_tokens, rng_of
from tests.traces import healthy_trace

from flatline.config import RunConfig
from flatline.hypotheses.base import Level
from flatline.hypotheses.h20_numeric_mismatch import NumericMismatch

H20 = NumericMismatch()


def noisy(off, **settings):
    def edit(row):
        at = model_tokens(row)
        row["trainer"][at] += rng_of(row).normal(0, off, len(at)).astype(np.float32)

    return edited(edit, steps=2, settings=settings)


@pytest.mark.parametrize(
    ("off", "bf16", "level"),
    [
        (1e-6, False, Level.OK),
        (1e-3, False, Level.NOTE),
        (0.02, False, Level.SUSPECT),
        (0.02, True, Level.OK),
        (0.045, True, Level.NOTE),
        (0.2, True, Level.SUSPECT),
    ],
)
def test_how_far_apart_they_may_be_depends_on_the_precision(off, bf16, level):
    assert H20.sign(noisy(off, bf16=bf16)).level is level


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_what_computes_in_16_bits_without_saying_bf16_is_judged_alike(precision):
    assert H20.sign(noisy(0.02, bf16=False, precision=precision)).level is Level.OK


def test_a_suspect_names_its_tail_and_its_worst_tokens():
    finding = H20.sign(noisy(0.1))
    assert "99 %" in finding.text
    assert len(finding.evidence) == 3


def test_few_prompts_say_nothing():
    assert H20.sign(healthy_trace(steps=1, prompts=2)).level is Level.UNKNOWN


def test_mixed_precision_is_compared_with_float32():
    assert H20.experiment(RunConfig()) is None
    assert H20.experiment(RunConfig(bf16=True)).change == {"bf16": False}


def test_precision_is_not_blamed_for_what_dropout_in_the_model_may_do():
    finding = H20.sign(noisy(0.02, bf16=False, dropout=0.1))
    assert finding.level is Level.UNKNOWN
    assert "disable_dropout" in finding.text
    assert H20.sign(noisy(1e-6, bf16=False, dropout=0.1)).level is Level.OK


def test_what_no_precision_explains_is_not_called_precision():
    far = H20.sign(noisy(0.7))
    assert far.level is Level.SUSPECT and "more than precision explains" in far.headline
    assert "flatline.checkup(trainer)" in far.fix
    assert "precision" in H20.sign(noisy(0.02)).headline
