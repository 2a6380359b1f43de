"""A checkup names the same lines of TRL in site-packages, a fork, a copy and a renamed one."""

import pytest

from tests.elsewhere import copy_of_trl, lines_named
from tests.elsewhere_child import CHANGES
from tests.quality.report import report

PLACES = {
    "lib/site-packages": "trl",
    "fork": "trl",
    "project": "mylab.vendored.trl",
    "renamed": "mytrl",
}
UNSURE = {"mask", "log-probs"}
"""Changes whose own line is not the first that is named."""


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    found = {}
    for place, package in PLACES.items():
        folder = tmp_path_factory.mktemp("elsewhere") / place
        copy_of_trl(folder, package)
        found[place] = lines_named(folder, **{package: ",".join(CHANGES)})[package]
    return found


def test_lines_do_not_depend_on_where_trl_lies(named):
    assert named["fork"] == named["project"] == named["renamed"] == named["lib/site-packages"]


@pytest.mark.parametrize("change", sorted(CHANGES.keys() - UNSURE))
def test_the_changed_line_is_named_first(named, change):
    one = named["fork"][change]
    report(f"{change}: {one['named'][:1]}")
    assert one["named"][:1] == [one["changed"]]
