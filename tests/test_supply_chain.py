"""What is installed is what was looked at: every dependency is pinned to one version."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([\w.-]+)==([\w.+!-]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def installed_extras() -> list[str]:
    """Those that the Makefile installs, so that tests can look at what came."""
    found = re.findall(r'--editable "\.\[([\w,-]+)\]"', (ROOT / "Makefile").read_text())
    return max(found, key=len).split(",")


def needed() -> set[str]:
    """Everything that the Makefile installs, at any depth."""
    extras = PROJECT["optional-dependencies"]
    asked = [
        *PROJECT["dependencies"],
        *(one for name in installed_extras() for one in extras[name]),
    ]
    found: set[str] = set()
    waiting = [Requirement(one) for one in asked]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"]:  # an extra that brings others
            waiting += [Requirement(one) for extra in requirement.extras for one in extras[extra]]
            continue
        if name in found or not _applies(requirement):
            continue
        found.add(name)
        for line in metadata.requires(name) or []:
            further = Requirement(line)
            wanted = [{"extra": extra} for extra in ("", *requirement.extras)]
            if further.marker is None or any(further.marker.evaluate(e) for e in wanted):
                waiting.append(further)
    return found


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def test_every_line_of_the_constraints_is_one_version():
    lines = [
        line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()
    ]
    lines = [line for line in lines if line and not line.startswith("--")]
    assert all(re.fullmatch(r"[\w.\[\]-]+==[\w.+!-]+", line) for line in lines), lines


def test_everything_that_is_installed_is_pinned():
    assert not sorted(needed() - PINS.keys())


@pytest.mark.parametrize(
    "name", sorted(canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"])
)
def test_what_every_user_gets_allows_the_version_that_was_tested(name):
    asked = next(
        Requirement(one)
        for one in PROJECT["dependencies"]
        if canonicalize_name(Requirement(one).name) == name
    )
    assert asked.specifier.contains(PINS[name])
