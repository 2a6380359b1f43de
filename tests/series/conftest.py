import numpy as np
import pytest

from tests.series.made import RNG


@pytest.fixture(autouse=True)
def same_noise():
    """Whatever ran before, and in whichever process."""
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state
