"""No import of a package that may be missing ends in a bare ModuleNotFoundError.

What a module imports when it is loaded is there for all that runs in it. What a function of it
imports on top, itself or through other modules of flatline, stands in a `with needing(...)`, which
says in words what to install, or lies in a module that only runs where its package is there.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import flatline
from flatline.errors import ConfigError, needing

PACKAGE = Path(flatline.__file__).parent
BASE = {"bm25s", "numpy", "pyarrow", "rich", "typer", "yaml", "bench"}
"""What a plain installation has; `bench` is asked for with words of its own (`cli/bench.py`)."""
BRINGS = {
    "torch": {"jinja2", "markupsafe"},
    "transformers": {"safetensors", "tokenizers"},
    "rich": {"markdown_it"},
    "trl": {"accelerate", "datasets", "transformers"},
    "uvicorn": {"h11"},
    "jinja2": {"markupsafe"},
}
"""Requirements of packages."""
OF_TRL = ("trl", "peft", "torch")
CERTAIN = {
    "bench/mutants": OF_TRL,  # `study` imports torch; what is trained is a script with TRL
    "cli/checkup.py": OF_TRL,  # `look` comes first
    "cli/demo.py": OF_TRL,  # asked for before anything
    "cli/evaluate.py": ("torch", "transformers"),  # `_engine` comes first
    "cli/query.py": ("duckdb",),  # the trace was asked with it
    "cli/serve.py": ("torch", "transformers"),  # what serves was imported before
    "diagnosis/renderers/trackers": ("mlflow", "torch", "trackio", "wandb"),  # `parse` asks for it
    "live/trl": ("trl",),  # holds a trainer of TRL's
    "live/verl": ("omegaconf", "transfer_queue", "verl"),  # holds a trainer of verl's
    "loopback/server.py": ("uvicorn",),  # `listen` comes first
    "tasks/retrieval.py": ("transformers",),  # wordllama, whose files were found, brings the same
    "training": OF_TRL,  # `flatline train` and the like come first
}
"""Modules and folders -> packages without which nobody gets there."""


class Import(NamedTuple):
    name: str
    line: int
    at_once: bool
    """Whether it is imported with its module."""
    caught: bool
    """Whether an ImportError of it is."""


@cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(path.read_text()), at_once=True, caught=False))


def _imports(node: ast.AST, *, at_once: bool, caught: bool) -> Iterator[Import]:
    for name in _named(node):
        yield Import(name, node.lineno, at_once, caught)
    at_once = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    for field, value in ast.iter_fields(node):
        if typing and field == "body":
            continue
        inside = caught or (field == "body" and _catches(node))
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from _imports(one, at_once=at_once, caught=inside)


def _named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    called = getattr(node, "func", None)
    if getattr(called, "attr", getattr(called, "id", "")) == "import_module":
        first = node.args[0]
        return [first.value] if isinstance(first, ast.Constant) else []
    return []


def _catches(node: ast.AST) -> bool:
    """Whether it is a `with needing(...)`, or a `try` that says it in words of its own."""
    if isinstance(node, ast.With):
        return any("needing" in ast.dump(one.context_expr) for one in node.items)
    return isinstance(node, ast.Try) and any(
        "ImportError" in ast.dump(one.type) for one in node.handlers if one.type
    )


def _file(module: str) -> Path | None:
    place = PACKAGE.parent.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def _parts(module: str) -> tuple[Path, ...]:
    """A module of flatline and the packages around it, which are loaded before it."""
    names = module.split(".")
    files = (_file(".".join(names[:count])) for count in range(1, len(names) + 1))
    return tuple(file for file in files if file is not None)


@cache
def needed(module: str) -> frozenset[str]:
    """Packages without which a module cannot be loaded."""
    if not module.startswith("flatline"):
        top = module.partition(".")[0]
        return frozenset(() if top in sys.stdlib_module_names else (top,))
    found, seen, waiting = set[str](), set[Path](), list(_parts(module))
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for one in imports(path):
            if not one.at_once or one.caught:
                continue
            if one.name.startswith("flatline"):
                waiting += _parts(one.name)
            else:
                found |= needed(one.name)
    return frozenset(found)


def there(path: Path) -> set[str]:
    """Packages that are there where a module runs."""
    inside = path.relative_to(PACKAGE).as_posix()
    name = inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = BASE | needed("flatline" if name == "__init__" else f"flatline.{name}")
    for place, packages in CERTAIN.items():
        found |= set(packages) if inside.startswith(place) else set()
    while more := {two for one in found for two in BRINGS.get(one, ())} - found:
        found |= more
    return found


def unguarded(path: Path) -> list[str]:
    known = there(path)
    return [
        f"{path.relative_to(PACKAGE)}:{one.line} imports {one.name}, which needs {missing}"
        for one in imports(path)
        if not one.at_once and not one.caught and (missing := needed(one.name) - known)
    ]


def test_what_may_be_missing_is_imported_where_its_absence_is_told_in_words():
    told = [line for path in sorted(PACKAGE.rglob("*.py")) for line in unguarded(path)]
    assert not told, "\n".join(told)


NEED_TORCH = ("checkup", "attach", "watch", "plant", "Loop", "FlatlineCallback")


def test_what_needs_torch_says_so_where_it_is_missing():
    code = (
        "import sys; sys.modules['torch'] = None; import flatline\n"
        "for name in sys.argv[1:]:\n"
        "    try: getattr(flatline, name)\n"
        "    except flatline.FlatlineError as error: print(error)"
    )
    command = [sys.executable, "-c", code, *NEED_TORCH]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [name for name in NEED_TORCH if f"`flatline.{name}` needs torch" not in told] == []
    assert told.count('pip install ".[train]"') == len(NEED_TORCH)


def test_a_package_that_is_there_and_broken_is_not_called_missing():
    broken = ImportError("libcudnn.so.9: cannot open shared object file", name="torch")
    with pytest.raises(ConfigError, match="libcudnn") as told, needing("A checkup"):
        raise broken
    assert "not installed" not in str(told.value)


def test_what_is_beside_ones_own_trl_needs_nothing_that_trl_does_not_bring():
    brought = BASE | {"trl", "peft", "torch", "accelerate", "datasets", "transformers"}
    brought |= {two for one in brought for two in BRINGS.get(one, ())}
    doors = set(flatline._WHERE.values())
    assert doors
    assert not {door: more for door in doors if (more := needed(door) - brought)}
