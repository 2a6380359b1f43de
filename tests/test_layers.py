"""Imports go one way, down the flow, and the diagnosis half never needs the training stack."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flatline
from flatline.live.subject import Subject
from tests.each import each

PACKAGE = Path(flatline.__file__).parent
FLOW = (
    "errors",
    "text",
    "markdown",
    "files",
    "signals",
    "loopback",
    "releases",
    "config",
    "project",
    "tails",
    "stats",
    "spec",
    "tasks",
    "rollout",
    "evaluate",
    "heldout",
    "trace",
    "live",
    "skyrl",
    "tinker",
    "faults",
    "training",
    "verl",
    "serve",
    "hypotheses",
    "remarks",
    "remedies",
    "diagnosis",
    "script",
    "verdict",
    "experiment",
    "journal",
    "investigation",
    "report",
    "alarms",
    "bench",
    "cli",
    "__main__",
)
"""Earlier parts know nothing of later ones."""
HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
MAY_IMPORT_TORCH = ("spec", "rollout", "live", "training", "faults", "remedies", "script", "verl")
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> list[str]:
    """What a module imports, when it runs or for its types."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def part(dotted: str) -> str:
    """`flatline.tasks.world` -> `tasks`."""
    return dotted.split(".")[1]


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_place_in_the_flow():
    assert MODULES
    assert {part_of(path) for path in MODULES} - {"__init__"} <= set(FLOW)


def above(path: Path) -> set[str]:
    """Parts that a module imports and must not know."""
    used = {part(name) for name in imported(path) if name.startswith("flatline.")}
    return {one for one in used & set(FLOW) if FLOW.index(one) > FLOW.index(part_of(path))}


def test_imports_go_down_the_flow():
    up = {str(path): above(path) for path in MODULES if part_of(path) != "__init__"}
    assert not {path: parts for path, parts in up.items() if parts}


def heavy(path: Path) -> list[str]:
    """What a module imports at once and a light command must not load."""
    top = ast.parse(path.read_text()).body
    names = [a.name for node in top if isinstance(node, ast.Import) for a in node.names]
    names += [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
    return [name for name in names if name.split(".")[0] in HEAVY]


def test_only_the_playing_and_training_half_imports_torch_at_the_top():
    light = [path for path in MODULES if part_of(path) not in MAY_IMPORT_TORCH]
    assert not {str(path): heavy(path) for path in light if heavy(path)}


BUILT_ON_TRL = {"trl", "verifiers"}
"""verifiers' trainer is recorded in TRL's layout."""
ANY_LOOP = [
    p
    for p in MODULES
    if part_of(p) == "live" and not BUILT_ON_TRL & {*p.parts} and p != PACKAGE / "live/attach.py"
]


def test_what_is_live_in_any_loop_knows_nothing_of_trl():
    assert ANY_LOOP
    known = {
        str(path): [name for name in imported(path) if name.startswith("flatline.live.trl")]
        for path in ANY_LOOP
    }
    assert not {path: names for path, names in known.items() if names}


@pytest.mark.parametrize("module", ["flatline", "flatline.tasks", "flatline.stats", "flatline.cli"])
def test_what_needs_no_model_imports_without_the_training_stack(module):
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in HEAVY)
    code = f"import sys; {blocked}import {module}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@each("path", sorted((PACKAGE / "hypotheses").glob("*.py")), ids=lambda path: path.stem)
def test_no_hypothesis_touches_a_trainer(path):
    """A probe asks the Subject for measurements, which are public and return plain records."""
    asked = [
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "subject"
    ]
    plain = {name for name in vars(Subject) if not name.startswith("_")}
    assert set(asked) <= plain, f"{path.name} asks for {set(asked) - plain}"
    assert "model" not in _attributes(path), f"{path.name} reaches for a model"


def _attributes(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return {node.attr for node in tree if isinstance(node, ast.Attribute)}
