"""A change put into a module while it is imported. No file is written."""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from flatline.bench.mutants.sites import Mutation, mutated, mutated_text
from flatline.errors import ConfigError


def source_of(module: str) -> Path:
    """The file of a module, without importing it; a path is its own file."""
    if module.endswith(".py"):
        return Path(module)
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise ConfigError(
            f"There is no source of {module} to change.\n"
            "A mutant is a change of Python code.\n"
            "Name a module that is installed as .py files, such as trl.trainer.grpo_trainer."
        )
    return Path(found.origin)


def plant(mutation: Mutation) -> None:
    """From now on the module is imported with the change; its package is imported anew.

    Whoever holds functions of the old one keeps them: call it before anything is built.
    """
    package = mutation.module.partition(".")[0]
    sys.meta_path.insert(0, _Finder(mutation))
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


class ChangedLoader(importlib.machinery.SourceFileLoader):
    """Loads the changed tree under the file's own name: tracebacks show its lines."""

    def __init__(self, fullname: str, path: str, mutation: Mutation | None) -> None:
        super().__init__(fullname, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        if self._mutation is None:
            return self.source_to_code(ast.parse(source), self.path)
        # Who looks at the source reads what runs, as if the mistake stood in the file.
        text = mutated_text(source, self._mutation)
        linecache.cache[self.path] = (len(text), None, text.splitlines(keepends=True), self.path)
        return self.source_to_code(mutated(source, self._mutation), self.path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return None
        loader = ChangedLoader(fullname, found.origin, self._mutation)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


@contextmanager
def lines_executed(files: Sequence[Path]) -> Iterator[dict[Path, set[int]]]:
    """Which lines of these files run inside of the block, in this thread."""
    seen: dict[Path, set[int]] = {file: set() for file in files}
    by_name = {str(file): lines for file, lines in seen.items()}

    def inside(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            by_name[frame.f_code.co_filename].add(frame.f_lineno)
        return inside

    def entered(frame: FrameType, event: str, arg: Any) -> Any:
        return inside if frame.f_code.co_filename in by_name else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield seen
    finally:
        sys.settrace(before)
