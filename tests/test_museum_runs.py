"""Two small exhibits of the museum, run as `make museum` runs them."""

import pytest
from museum.exhibit import exhibit
from museum.run import named, run_exhibit, silent


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["trl_logged_reward", "trl_temperature"])
def test_the_bad_release_is_named_and_the_good_one_is_silent(name, tmp_path):
    sides = run_exhibit(name, tmp_path)
    missing = [side["not_had"] for side in sides.values() if "not_had" in side]
    if missing:
        pytest.skip(f"cannot be had here: {missing[0]}")
    assert named(exhibit(name), sides["bad"]), sides["bad"]
    assert silent(sides["good"]), sides["good"]
