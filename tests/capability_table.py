"""Which capability of a training opens which hypotheses: docs/your-own-loop.md ends with it.

    python -m tests.capability_table            prints it

Read off the code: the measurements that a probe asks its Subject for, in its own module and in
those of `flatline.hypotheses` that it imports from, and the capabilities that these declare.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import HasProbe, HasSign, Hypothesis
from flatline.live.protocol import Capability
from flatline.live.subject import Subject

PACKAGE = "flatline.hypotheses."


def opened() -> dict[Capability, list[str]]:
    """Hypotheses whose look at a live training uses each capability."""
    wanted = {one.id: needed(one) for one in HYPOTHESES}
    return {
        asked: [code for code, known in wanted.items() if asked in known] for asked in Capability
    }


def needed(hypothesis: Hypothesis) -> set[Capability]:
    """What its probe asks for, and a sign on one batch."""
    found = set()
    if isinstance(hypothesis, HasProbe):
        module = type(hypothesis).probe.__module__  # its own, or that of its kind
        asked = _asked(module, _function(module, "probe"))
        found = {one for name in asked for one in _of(name)}
    if isinstance(hypothesis, HasSign) and hypothesis.on_one_batch:
        found.add(Capability.BATCH)
    return found


def _of(measurement: str) -> tuple[Capability, ...]:
    method = vars(Subject)[measurement]
    declared = getattr(method, "fget", method)
    return tuple(getattr(declared, "needs", ()))


def _asked(module: str, node: ast.AST, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names that a function takes of `subject`, and those that the functions it calls take."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "subject":
            yield one.attr
        if isinstance(one, ast.Call):
            called = one.func.attr if isinstance(one.func, ast.Attribute) else None
            called = one.func.id if isinstance(one.func, ast.Name) else called
            where = _imports(module).get(called or "", module)
            if called and f"{where}.{called}" not in seen:
                yield from _inside(where, called, seen | {f"{where}.{called}"})


def _inside(module: str, name: str, seen: frozenset[str]) -> Iterator[str]:
    try:
        found = _function(module, name)
    except StopIteration:
        return
    if any(argument.arg == "subject" for argument in found.args.args):
        yield from _asked(module, found, seen)


def _function(module: str, name: str) -> ast.FunctionDef:
    tree = _tree(module)
    return next(
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == name
    )


@cache
def _tree(module: str) -> ast.Module:
    path = sys.modules[module].__file__
    assert path is not None
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _imports(module: str) -> dict[str, str]:
    """Functions of other modules of the hypotheses, and where they are."""
    imports = (one for one in ast.walk(_tree(module)) if isinstance(one, ast.ImportFrom))
    ours = (one for one in imports if (one.module or "").startswith(PACKAGE))
    return {name.name: one.module or "" for one in ours for name in one.names}


def table() -> str:
    """As Markdown."""
    rows = [f"| {asked} | {', '.join(codes)} |" for asked, codes in opened().items()]
    return "\n".join(["| capability | hypotheses that look with it |", "|---|---|", *rows])


if __name__ == "__main__":
    print(table())
