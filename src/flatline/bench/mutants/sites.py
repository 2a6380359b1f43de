"""Where a module can be changed in one place, and the module with that change in it."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from flatline.bench.mutants.operators import OPERATORS, Around
from flatline.errors import ConfigError

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NOTHING_AROUND = Around((), ())


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one module."""

    module: str
    """Its dotted name."""
    number: int
    """Which of the changes that the module allows, in the order of its text."""
    operator: str
    line: int
    function: str
    """The function that holds the line, with its class."""
    before: str
    """The changed piece of code as it was."""
    after: str
    """And as it is; empty where it was taken out."""

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line}#{self.number}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Place(NamedTuple):
    """A node and how to put another one there."""

    node: ast.AST
    parent: ast.AST
    field: str
    at: int | None
    statement: ast.stmt
    function: str
    around: Around

    def put(self, other: ast.AST | None) -> None:
        if other is None:
            other = ast.Pass()
        ast.copy_location(other, self.node)
        if self.at is None:
            setattr(self.parent, self.field, other)
        else:
            getattr(self.parent, self.field)[self.at] = other


def mutations(source: str, module: str, lines: Collection[int]) -> list[Mutation]:
    """Every change of a statement that begins on one of these lines, each once."""
    wanted = frozenset(lines)
    return [
        one
        for one, place, _ in _every(ast.parse(source), module)
        if place.statement.lineno in wanted
    ]


def mutated(source: str, mutation: Mutation) -> ast.Module:
    """The module with the change in it; the lines of everything else stay what they are."""
    tree = ast.parse(source)
    for one, place, other in _every(tree, mutation.module):
        if one == mutation:
            place.put(other)
            return ast.fix_missing_locations(tree)
    raise ConfigError(
        f"{mutation.name} ({mutation.operator}: {mutation.before!r}) does not fit this "
        f"{mutation.module}: another release is installed than the one it was drawn from.\n"
        "Mutants of this release go into a folder of their own: `--out DIR`."
    )


def mutated_text(source: str, mutation: Mutation) -> str:
    """The same as text, each line where it was: what somebody who made the mistake would read."""
    for one, place, other in _every(ast.parse(source), mutation.module):
        if one == mutation:
            return _spliced(source, place.node, other)
    return source


def _spliced(source: str, node: ast.AST, other: ast.AST | None) -> str:
    """Another node in the place of one, on as many lines."""
    if isinstance(node, ast.If | ast.While) and isinstance(other, ast.If | ast.While):
        node, other = node.test, other.test  # only conditions are changed
    text = "pass" if other is None else ast.unparse(other)
    lines = source.splitlines(keepends=True)
    begin, end = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head = lines[begin].encode()[: node.col_offset].decode()  # type: ignore[attr-defined]
    tail = lines[end].encode()[node.end_col_offset :].decode()  # type: ignore[attr-defined]
    whole = isinstance(node, ast.expr) and not isinstance(node, ast.Slice)
    blank = "\n" * (end - begin)
    new = f"{head}({text}{blank}){tail}" if whole else f"{head}{text}{blank}{tail}"
    return "".join([*lines[:begin], new, *lines[end + 1 :]])


def _every(tree: ast.Module, module: str) -> Iterator[tuple[Mutation, _Place, ast.AST | None]]:
    number, said = 0, set()
    for place in _places(tree):
        for operator, change in OPERATORS.items():
            for other in change(place.node, place.around):
                before, after = ast.unparse(place.node), "" if other is None else ast.unparse(other)
                line = getattr(place.node, "lineno", place.statement.lineno)
                key = (id(place.node), after)
                if after == before or key in said:
                    continue  # two operators may come to the same code
                said.add(key)
                yield (
                    Mutation(module, number, operator, line, place.function, before, after),
                    place,
                    other,
                )
                number += 1


def _places(tree: ast.Module) -> Iterator[_Place]:
    """Every node inside a function, outside in, in the order of the text."""
    yield from _inside(tree, _Here(None, "", "", _NOTHING_AROUND))


class _Here(NamedTuple):
    """Where in the module a walk has come to."""

    statement: ast.stmt | None
    owner: str
    """The class."""
    function: str
    """Empty outside of functions: what is done there is done on import."""
    around: Around


def _inside(node: ast.AST, here: _Here) -> Iterator[_Place]:
    for field, value in ast.iter_fields(node):
        listed = isinstance(value, list)
        for index, child in enumerate(value if listed else [value]):
            if not isinstance(child, ast.AST) or _is_note(field, child):
                continue
            there = _entered(child, here)
            if here.function and there.statement is not None and there.function == here.function:
                at = index if listed else None
                yield _Place(child, node, field, at, there.statement, here.function, here.around)
            # Defaults and decorators are read on import.
            inner = _body(child) if isinstance(child, _FUNCTIONS) else child
            yield from _inside(inner, there)


def _entered(child: ast.AST, here: _Here) -> _Here:
    if isinstance(child, ast.ClassDef):
        return _Here(child, child.name, here.function, Around((), _attributes(child)))
    if isinstance(child, _FUNCTIONS):
        outer = here.function or here.owner
        named = f"{outer}.{child.name}" if outer else child.name
        return _Here(child, here.owner, named, Around(_names(child), here.around.attributes))
    return here._replace(statement=child) if isinstance(child, ast.stmt) else here


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Module:
    """Shares the list of statements: a change in it reaches the tree."""
    return ast.Module(function.body, [])


def _is_note(field: str, child: ast.AST) -> bool:
    """Docstrings, annotations and the parts of an f-string change nothing that trains."""
    if field in ("annotation", "returns", "decorator_list", "ctx", "type_comment"):
        return True
    if isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert):
        return True
    return isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)


def _names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    given = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)]
    made = [
        one.id
        for one in ast.walk(function)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]
    return tuple(dict.fromkeys(name for name in (*given, *made) if name != "self"))


def _attributes(owner: ast.ClassDef) -> tuple[str, ...]:
    kept = [
        one.attr
        for one in ast.walk(owner)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    ]
    return tuple(dict.fromkeys(kept))
