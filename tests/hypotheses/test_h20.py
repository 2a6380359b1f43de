"""H20: sampler and trainer differ at equal weights, for no other reason."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, levels_of, model_tokens, rng_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h20_numeric_mismatch import NumericMismatch

H20 = NumericMismatch()


def noisy(off, **settings):
    def edit(row):
        at = model_tokens(row)
        row["trainer"][at] += rng_of(row).normal(0, off, len(at)).astype(np.float32)

    return edited(edit, steps=2, settings=settings)


@pytest.mark.parametrize(("off", "bf16", "level"), [
    (1e-6, False, Level.OK), (1e-3, False, Level.NOTE), (0.02, False, Level.SUSPECT),
    (0.02, True, Level.OK), (0.045, True, Level.NOTE), (0.2, True, Level.SUSPECT),
])  # fmt: skip
def test_how_far_apart_they_may_be_depends_on_the_precision(off, bf16, level):
    assert H20.sign(noisy(off, bf16=bf16)).level is level


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_what_computes_in_16_bits_without_saying_bf16_is_judged_alike(precision):
    assert H20.sign(noisy(0.02, bf16=False, precision=precision)).level is Level.OK


def test_what_no_precision_explains_is_not_called_precision():
    far = H20.sign(noisy(0.7))
    assert far.level is Level.SUSPECT and "more than precision explains" in far.headline
    assert "flatline.checkup(trainer)" in far.fix
    assert "precision" in H20.sign(noisy(0.02)).headline


test_levels_of_the_sign = levels_of(H20.sign, {
    "precision is not blamed for what dropout in the model may do": ("unknown",
        lambda: noisy(0.02, bf16=False, dropout=0.1)),
    "precision is not blamed for what dropout in the model may do (2)": ("ok",
        lambda: noisy(1e-6, bf16=False, dropout=0.1)),
})  # fmt: skip
