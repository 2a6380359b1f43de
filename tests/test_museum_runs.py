"""One small exhibit of the museum, run as `make museum` runs all; `tests/quality` does too."""

import pytest
from museum.exhibit import exhibit
from museum.run import named, run_exhibit, silent


@pytest.mark.timeout(900)
def test_the_bad_release_is_named_and_the_good_one_is_silent(tmp_path):
    name = "trl_temperature"
    sides = run_exhibit(name, tmp_path)
    missing = [side["not_had"] for side in sides.values() if "not_had" in side]
    if missing:
        pytest.skip(f"cannot be had here: {missing[0]}")
    assert named(exhibit(name), sides["bad"]), sides["bad"]
    assert silent(sides["good"]), sides["good"]
