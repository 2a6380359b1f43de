"""Every exhibit of the museum, run anew."""

import pytest
from museum.exhibit import exhibit, names
from museum.run import named, run_exhibit, silent

from tests.quality.report import report

NOW = [name for name in names() if not exhibit(name).later]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("museum")


@pytest.mark.parametrize("name", NOW)
def test_the_bad_release_is_named_and_the_good_one_is_silent(name, out):
    sides = run_exhibit(name, out)
    missing = [side["not_had"] for side in sides.values() if "not_had" in side]
    if missing:
        pytest.skip(f"cannot be had here: {missing[0]}")
    said = {side: [one["code"] for one in facts.get("alarms", ())] for side, facts in sides.items()}
    report(f"{name}: {said}")
    assert named(exhibit(name), sides["bad"]), sides["bad"]
    assert silent(sides["good"]), sides["good"]
