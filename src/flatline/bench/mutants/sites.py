"""Where a module can be changed in one place, and the module with that change in it."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from flatline.bench.mutants.changed_text import changed_text
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


class Sites:
    """Every change that a module allows. Its tree is parsed once, and takes one change at most."""

    def __init__(self, source: str, module: str) -> None:
        self.tree = ast.parse(source)
        self._source, self.module = source, module
        self._places = dict(_every(self.tree, module))

    def at(self, lines: Collection[int]) -> list[Mutation]:
        """Changes of statements that begin on one of these lines, each once."""
        wanted = frozenset(lines)
        return [one for one, place in self._places.items() if place.statement.lineno in wanted]

    def statement(self, mutation: Mutation) -> int:
        """The line on which the changed statement begins."""
        return self._places[mutation].statement.lineno

    def put(self, mutation: Mutation) -> ast.Module:
        """The module with the change in it; the lines of everything else stay what they are."""
        place, other = self._change(mutation)
        place.put(other)
        return ast.fix_missing_locations(self.tree)

    def text(self, mutation: Mutation) -> str:
        """The same as text."""
        place, other = self._change(mutation)
        return changed_text(self._source, place.node, other)

    def _change(self, mutation: Mutation) -> tuple[_Place, ast.AST | None]:
        place = self._places.get(mutation)
        if place is None:
            raise ConfigError(
                f"{mutation.name} ({mutation.operator}: {mutation.before!r}) does not fit this "
                f"{mutation.module}: the installed release is not the one it was drawn from.\n"
                "Put the mutants of this release into a separate folder: `--out DIR`."
            )
        others = OPERATORS[mutation.operator](place.node, place.around)
        return place, next(other for other in others if _text(other) == mutation.after)


def _every(tree: ast.Module, module: str) -> Iterator[tuple[Mutation, _Place]]:
    number, said = 0, set()
    for place in _places(tree):
        for operator, change in OPERATORS.items():
            for other in change(place.node, place.around):
                before, after = _text(place.node), _text(other)
                line = getattr(place.node, "lineno", place.statement.lineno)
                key = (id(place.node), after)
                if after == before or key in said:
                    continue  # two operators may come to the same code
                said.add(key)
                yield Mutation(module, number, operator, line, place.function, before, after), place
                number += 1


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)


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
