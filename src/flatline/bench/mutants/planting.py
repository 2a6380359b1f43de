"""A change put into the functions of an imported module. No file is written."""

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from flatline.bench.mutants.sites import Mutation, Sites
from flatline.errors import ConfigError

Place = tuple[str, int]
"""Qualified name and first line of a function."""


def source_of(module: str) -> Path:
    """The file of a module, without importing it; a path is its own file."""
    if module.endswith(".py"):
        return Path(module)
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise ConfigError(
            f"There is no source of {module} to change.\n"
            "A mutant is a change of Python code.\n"
            "Name a module that is installed as .py files, such as trl.trainer.grpo_trainer."
        )
    return Path(found.origin)


class Ground:
    """A module in which one change is planted: made once, before the processes that plant."""

    def __init__(self, module: str) -> None:
        self.file = source_of(module)
        self.sites = Sites(self.file.read_text(encoding="utf-8"), module)
        self._before: dict[FunctionType, CodeType] = {}
        self._unchanged = self._compiled()
        if not module.endswith(".py"):  # a script is loaded by whoever runs it
            importlib.import_module(module)
            self._before = {one: one.__code__ for one in _functions_of(self.file)}

    def plant(self, mutation: Mutation) -> None:
        """From now on the function of the mutation runs with the change, whoever holds it.

        Its code is exchanged and the function stays: nothing has to be imported again, and what
        other modules imported from this one is changed too.
        """
        codes = _functions_in(self.code(mutation))
        changed = {
            function: _fitting(codes[place], before)
            for function, before in self._before.items()
            if (place := _place(before)) in codes and codes[place] != before
        }
        if not changed:
            raise ConfigError(
                f"{mutation.name} is in no function that is loaded ({mutation.function}).\n"
                "A change can be planted only in code that a process has imported."
            )
        for function, code in changed.items():
            function.__code__ = code

    def clear(self) -> None:
        """The functions run again as they were."""
        for function, before in self._before.items():
            function.__code__ = before

    def code(self, mutation: Mutation | None) -> CodeType:
        """The whole module, with the change or without one, to be run."""
        if mutation is None:
            return self._unchanged
        self.sites.put(mutation)
        return self._compiled()

    def _compiled(self) -> CodeType:
        return compile(self.sites.tree, str(self.file), "exec")


def _functions_of(file: Path) -> list[FunctionType]:
    """Every function of a file that is alive, also one behind a decorator."""
    name = str(file)
    functions = (one for one in gc.get_objects() if type(one) is FunctionType)
    return [one for one in functions if one.__code__.co_filename == name]


def _functions_in(code: CodeType) -> dict[Place, CodeType]:
    """Functions and methods of a compiled module; what they define themselves is inside of them."""
    found: dict[Place, CodeType] = {}
    for one in code.co_consts:
        if not isinstance(one, CodeType):
            continue
        if one.co_flags & CO_OPTIMIZED:
            found[_place(one)] = one
        else:  # the body of a class
            found |= _functions_in(one)
    return found


def _fitting(code: CodeType, before: CodeType) -> CodeType:
    """A method from which `super()` was taken no longer knows its class; its closure still does."""
    return code.replace(co_freevars=before.co_freevars)


def _place(code: CodeType) -> Place:
    return code.co_qualname, code.co_firstlineno


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
