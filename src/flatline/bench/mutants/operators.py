"""Small changes of a syntax tree, each of a kind that people make by mistake.

An operator takes a node and yields what may stand in its place; `None` takes a statement out. It
knows nothing of training: no operator is there because a hypothesis would find it.
"""

import ast
import copy
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

Node = TypeVar("Node", bound=ast.AST)
Changed = Iterator[ast.AST | None]


class Around(NamedTuple):
    """What stands around a node."""

    names: tuple[str, ...]
    """Variables and arguments of the function, in the order of appearance."""
    attributes: tuple[str, ...]
    """What the class keeps on `self`."""


Operator = Callable[[ast.AST, Around], Changed]

_COMPARED: Mapping[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_CALCULATED: Mapping[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
}
_SWAPPED = {
    "mean": "sum",
    "sum": "mean",
    "nanmean": "nansum",
    "nansum": "nanmean",
    "std": "var",
    "var": "std",
    "nanstd": "nanmean",
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "argmin": "argmax",
    "repeat": "repeat_interleave",
    "repeat_interleave": "repeat",
    "exp": "log",
    "log": "exp",
    "all": "any",
    "any": "all",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "floor": "ceil",
    "ceil": "floor",
    "append": "extend",
    "view": "reshape",
    "log_softmax": "softmax",
    "softmax": "log_softmax",
}
_PASSING = frozenset(
    {
        "detach",
        "clone",
        "float",
        "double",
        "half",
        "bool",
        "int",
        "long",
        "to",
        "abs",
        "exp",
        "log",
        "clamp",
        "contiguous",
        "cpu",
        "flatten",
        "squeeze",
        "unsqueeze",
        "flip",
        "sort",
        "unique",
        "strip",
        "lower",
        "upper",
        "split",
        "masked_fill",
        "requires_grad_",
    }
)
"""Methods without which the value that they are called on goes on as it is."""
_TEXTS = {
    "left": "right",
    "right": "left",
    "group": "batch",
    "batch": "group",
    "token": "sequence",
    "sequence": "token",
}
_LIKENESS = 0.5
"""How alike two names must be for one to be written for the other."""


def comparison(node: ast.AST, around: Around) -> Changed:
    """`<` for `<=`, `==` for `!=`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARED.get(type(node.ops[0]), ()):
            yield _with(node, ops=[other()])


def arithmetic(node: ast.AST, around: Around) -> Changed:
    """`+` for `-`, `*` for `/`."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for other in _CALCULATED.get(type(node.op), ()):
            yield _with(node, op=other())


def dropped_operand(node: ast.AST, around: Around) -> Changed:
    """`a` or `b` for `a * b`."""
    if isinstance(node, ast.BinOp):
        yield copy.deepcopy(node.left)
        if not isinstance(node.op, ast.Div | ast.FloorDiv | ast.Pow | ast.Mod):
            yield copy.deepcopy(node.right)
    if isinstance(node, ast.BoolOp):
        for one in node.values:
            rest = [copy.deepcopy(other) for other in node.values if other is not one]
            yield rest[0] if len(rest) == 1 else _with(node, values=rest)


def constant(node: ast.AST, around: Around) -> Changed:
    """A number that is a little other."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return
    value = node.value
    if isinstance(value, int):
        yield ast.Constant(value + 1)
        if value:
            yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 10 if value else 1.0)
        if value not in (0.0, 1.0):
            yield ast.Constant(0.0)


def boolean(node: ast.AST, around: Around) -> Changed:
    """`True` for `False`, `and` for `or`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    if isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def sign(node: ast.AST, around: Around) -> Changed:
    """A minus too many or too few."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.BinOp):
        yield ast.UnaryOp(ast.USub(), copy.deepcopy(node))


def slice_bound(node: ast.AST, around: Around) -> Changed:
    """A slice that begins or ends one place off, or has no end."""
    if not isinstance(node, ast.Slice):
        return
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is None:
            continue
        yield _with(node, **{name: None})
        yield _with(node, **{name: ast.BinOp(copy.deepcopy(bound), ast.Add(), ast.Constant(1))})
        yield _with(node, **{name: ast.BinOp(copy.deepcopy(bound), ast.Sub(), ast.Constant(1))})
    if node.lower is None and node.upper is not None:
        yield ast.Slice(copy.deepcopy(node.upper), None, None)


def axis(node: ast.AST, around: Around) -> Changed:
    """A reduction over another dimension, or over all."""
    if not isinstance(node, ast.Call):
        return
    for at, keyword in enumerate(node.keywords):
        if keyword.arg in ("dim", "axis") and isinstance(keyword.value, ast.Constant | ast.UnaryOp):
            for other in (0, -1):
                if ast.unparse(keyword.value) != str(other):
                    changed = _with(node)
                    changed.keywords[at].value = _number(other)
                    yield changed
        if keyword.arg == "keepdim":
            yield _without(node, at)


def padding_side(node: ast.AST, around: Around) -> Changed:
    """One word for its opposite, where a text decides."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _TEXTS:
        yield ast.Constant(_TEXTS[node.value])


def swapped_call(node: ast.AST, around: Around) -> Changed:
    """`mean` for `sum`, `repeat` for `repeat_interleave`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        other = _SWAPPED.get(node.func.attr)
        if other:
            yield _with(node, func=_with(node.func, attr=other))


def dropped_call(node: ast.AST, around: Around) -> Changed:
    """A `detach()` that is missing; a function that hands its argument on."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr not in _PASSING:
        return
    if ast.unparse(node.func.value) not in ("torch", "np", "F", "nn.functional"):
        yield copy.deepcopy(node.func.value)
    elif node.args:
        yield copy.deepcopy(node.args[0])


def argument(node: ast.AST, around: Around) -> Changed:
    """A named argument left out, or two of them in the wrong order."""
    if not isinstance(node, ast.Call):
        return
    for at, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "dim", "axis", "keepdim"):
            yield _without(node, at)
    if len(node.args) == 2 and ast.dump(node.args[0]) != ast.dump(node.args[1]):
        yield _with(node, args=[copy.deepcopy(node.args[1]), copy.deepcopy(node.args[0])])


def sibling_variable(node: ast.AST, around: Around) -> Changed:
    """The variable next to the one that was meant."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in around.names:
        for other in _alike(node.id, around.names):
            yield ast.Name(other, ast.Load())
    elif (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and node.attr in around.attributes
    ):
        for other in _alike(node.attr, around.attributes):
            yield _with(node, attr=other)


def negated_condition(node: ast.AST, around: Around) -> Changed:
    """The other branch."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))


def removed_statement(node: ast.AST, around: Around) -> Changed:
    """A line that is missing."""
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if called or isinstance(node, ast.AugAssign) or _overwrites(node):
        yield None


OPERATORS: Mapping[str, Operator] = {
    "comparison": comparison,
    "arithmetic": arithmetic,
    "dropped operand": dropped_operand,
    "constant": constant,
    "boolean": boolean,
    "sign": sign,
    "slice": slice_bound,
    "axis": axis,
    "padding side": padding_side,
    "swapped call": swapped_call,
    "dropped call": dropped_call,
    "argument": argument,
    "sibling variable": sibling_variable,
    "negated condition": negated_condition,
    "removed statement": removed_statement,
}


def _with(node: Node, **fields: object) -> Node:
    """A copy with some fields set."""
    found = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def _without(node: ast.Call, at: int) -> ast.Call:
    """A call without one of its named arguments."""
    found = copy.deepcopy(node)
    del found.keywords[at]
    return found


def _number(value: int) -> ast.expr:
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def _alike(name: str, others: tuple[str, ...]) -> list[str]:
    rest = [other for other in others if other != name]
    return difflib.get_close_matches(name, rest, n=2, cutoff=_LIKENESS)


def _overwrites(node: ast.AST) -> bool:
    """Whether a variable is made from itself: without the line the old value goes on."""
    if not isinstance(node, ast.Assign):
        return False
    targets = {ast.unparse(target) for target in node.targets}
    return any(
        isinstance(one, ast.Name | ast.Attribute | ast.Subscript) and ast.unparse(one) in targets
        for one in ast.walk(node.value)
    )
