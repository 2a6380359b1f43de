"""What a wheel will hold, read from the configuration; `tests/quality` builds and installs it."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flatline"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PATTERNS = PROJECT["tool"]["setuptools"]["package-data"]["flatline"]
JUNK = ("__pycache__", ".pyc", ".egg-info", ".DS_Store")


def data_files():
    """All that is no Python and no litter."""
    found = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py")
    return {path for path in found if not any(word in str(path) for word in JUNK)}


def test_every_data_file_is_packed():
    packed = {path for pattern in PATTERNS for path in PACKAGE.glob(pattern)}
    left_out = {str(path.relative_to(PACKAGE)) for path in data_files() - packed}
    assert not left_out, "add a pattern to [tool.setuptools.package-data]"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_packs_something(pattern):
    assert any(path.is_file() for path in PACKAGE.glob(pattern))


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_base_needs_no_training_stack():
    named = " ".join(PROJECT["project"]["dependencies"])
    heavy = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "ray", "wandb")
    assert not [name for name in heavy if name in named]


def test_the_metadata_is_complete_and_no_place_holder():
    project = PROJECT["project"]
    for key in ("description", "readme", "license", "keywords", "classifiers"):
        assert project[key], key
    text = (ROOT / "pyproject.toml").read_text().lower()
    assert not [word for word in ("todo", "example.com", "your-name", "changeme") if word in text]


def test_every_dependency_is_pinned_for_ci_and_explained():
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()
    }
    explained = (ROOT / "docs" / "dependencies.md").read_text().lower()
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    named = {_name(one) for one in project["dependencies"]}
    named |= {_name(one) for group in extras.values() for one in group}
    assert not [name for name in sorted(named) if f"`{name}`" not in explained]
    installed_by_ci = {_name(one) for group in ("train", "semantic", "ray", "dev", "docs")
                       for one in extras[group]}  # fmt: skip
    assert not [name for name in sorted(installed_by_ci) if name not in pinned]


def _name(requirement):
    return requirement.split(">=")[0].split("[")[0].strip().lower()
