"""The statements of a source file: which line belongs to which, what each reads and writes."""

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

Path = tuple[str, ...]
"""A local name, then `.attribute` and `[key]` steps from it: `("inputs", "[mask]")`."""
Lines = tuple[int, ...]
_GUARDS = (ast.If, ast.While, ast.For, ast.With, ast.Try)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, eq=False, slots=True)
class Statement:
    """One statement; of an `if`, a loop or a `with` its head alone."""

    file: str
    line: int
    end: int
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    guards: Lines
    """Lines of the heads around it, innermost first."""
    inside: frozenset[str] = field(default=frozenset())
    """Names that are written below this head."""
    kind: str = ""
    leaves: bool = False
    """Whether what is below this head may end a loop, a turn of it or the function."""

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()


@cache
def statements(file: str) -> dict[int, Statement]:
    """Line -> the innermost statement there; empty where the source cannot be had."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, Statement] = {}
    for node, guards in _every(tree.body, ()):
        one = _statement(node, file, guards)
        found.update(dict.fromkeys(range(one.line, one.end + 1), one))
    return found


def _every(body: list[ast.stmt], guards: Lines) -> Iterator[tuple[ast.stmt, Lines]]:
    for node in body:
        yield node, guards
        around = () if isinstance(node, _FUNCTIONS) else (node.lineno, *guards)
        for inner in _bodies(node):
            yield from _every(inner, around)


def _bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield from [getattr(node, name)] if getattr(node, name, None) else []
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


def _statement(node: ast.stmt, file: str, guards: Lines) -> Statement:
    below = [inner for body in _bodies(node) for inner in body]
    end = min((inner.lineno - 1 for inner in below), default=node.end_lineno or node.lineno)
    heads = list(_heads(node))
    return Statement(
        file=file,
        line=node.lineno,
        end=max(node.lineno, end),
        reads=tuple(dict.fromkeys(path for head in heads for path in _paths(head, ast.Load))),
        writes=tuple(dict.fromkeys(path for head in heads for path in _paths(head, ast.Store))),
        guards=guards,
        inside=frozenset(_names_written(below)),
        kind=type(node).__name__,
        leaves=any(isinstance(inner, ast.Continue | ast.Break | ast.Return) for inner in below),
    )


def _names_written(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        for one in ast.walk(node):
            stored = isinstance(getattr(one, "ctx", None), ast.Store | ast.Del)
            whole = _whole(one)
            if stored and isinstance(whole, ast.Name):
                yield whole.id
            elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
                called = one.value.func  # `rows.append(...)` writes to rows
                of = called.value if isinstance(called, ast.Attribute) else called
                path = _path(_whole(of))
                yield from path[:1] if isinstance(called, ast.Attribute) else ()


def _whole(node: ast.AST) -> ast.AST:
    """What an entry is part of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _heads(node: ast.stmt) -> Iterator[ast.AST]:
    """What is evaluated when the statement itself runs."""
    if isinstance(node, _FUNCTIONS):
        return
    if not isinstance(node, (*_GUARDS, ast.AsyncFor, ast.AsyncWith, ast.Match)):
        yield node
        return
    for name in ("test", "target", "iter", "subject"):
        if hasattr(node, name):
            yield getattr(node, name)
    yield from getattr(node, "items", ())


def _paths(node: ast.AST, context: type) -> Iterator[Path]:
    """Longest paths first come, and the names that they begin with."""
    for one in ast.walk(node):
        if isinstance(one, ast.AugAssign) and context is ast.Load:
            path = _path(one.target)
            yield from [path] if path else []
        if isinstance(getattr(one, "ctx", None), context):
            path = _path(one)
            yield from [path] if path else []
        elif context is ast.Load and isinstance(one, ast.Call):
            yield from _got(one)


def _got(call: ast.Call) -> Iterator[Path]:
    """`inputs.get("mask")` reads what `inputs["mask"]` does."""
    asked = isinstance(call.func, ast.Attribute) and call.func.attr == "get" and call.args
    if asked and isinstance(call.args[0], ast.Constant):
        path = _path(call.func.value)  # type: ignore[attr-defined]
        yield from [(*path, _key(call.args[0]))] if path else []


def _key(constant: ast.Constant) -> str:
    return f"[{constant.value!s}]"


def _path(node: ast.AST) -> Path:
    """Empty where it is no plain path."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _path(node.value)
        return (*before, f".{node.attr}") if before else ()
    if isinstance(node, ast.Subscript):
        before = _path(node.value)
        if before and isinstance(node.slice, ast.Constant):
            return (*before, _key(node.slice))
        return before if isinstance(node.ctx, ast.Store) else ()
    return ()
