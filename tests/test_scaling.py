"""Steps that multiply all weights by one number."""

import numpy as np
import pytest

from flatline.spec.scaling import Scaling, common_factor

SIZE = np.array([4096.0, 4096.0, 4096.0, 64.0, 64.0, 16384.0])


def step(change, *, weights=None):
    """What `change` makes of weights of several sizes; it is given each and a random direction."""
    rng = np.random.default_rng(0)
    old = [rng.normal(size=int(n)) for n in SIZE] if weights is None else weights
    new = [change(w, rng.normal(size=w.shape)) for w in old]
    norm = [np.array([np.linalg.norm(w) for w in part]) for part in (old, new)]
    moved = np.array([np.linalg.norm(b - a) for a, b in zip(old, new, strict=True)])
    return Scaling.of_norms(*norm, moved, SIZE)


@pytest.mark.parametrize("factor", [0.9, 0.98, 1.05])
def test_a_common_factor_is_found_beside_a_small_step_along_the_gradient(factor):
    found = common_factor(step(lambda w, way: factor * w + 1e-4 * np.sign(way)), 1e-4)
    assert found == pytest.approx(factor, abs=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        lambda w, way: (1 - 1e-3 * 0.1) * w + 1e-3 * np.sign(way),  # AdamW and its decay
        lambda w, way: w + 0.3 * way,  # a huge step across the weights
        lambda w, way: (w + 0.2 * way) * np.linalg.norm(w) / np.linalg.norm(w + 0.2 * way),
        lambda w, way: w * (0.9 if w.size == 4096 else 1.0),  # some of the weights alone
        lambda w, way: w * (1 - 0.1 * w.size / 16384),  # each by its own
        lambda w, way: w,
    ],
)
def test_what_optimizers_do_has_no_common_factor(change):
    assert common_factor(step(change), 1e-3) is None


def test_a_decay_of_a_high_rate_is_what_was_asked_for():
    assert common_factor(step(lambda w, way: (1 - 0.02) * w), rate=1e-2) is None


def test_weights_that_began_at_zero_have_no_factor():
    nothing = [np.zeros(int(n)) for n in SIZE]
    assert common_factor(step(lambda w, way: w + 1e-3 * way, weights=nothing), 1e-3) is None


def test_an_adapter_whose_first_halves_stay_as_they_are_has_no_common_factor():
    grows = iter([True, False] * 3)
    assert common_factor(step(lambda w, way: w * 1.5 if next(grows) else w + 1e-3 * way), 0) is None
