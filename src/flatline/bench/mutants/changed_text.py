"""The text of a module with a change in it: what somebody who made the mistake would read.

Whoever looks up a line of a mutant (a traceback, `flatline.live.where`) must see the code that
runs, not the code that was there before.
"""

import ast
import linecache
from pathlib import Path


def show_changed(file: Path, changed: ast.Module) -> None:
    """From now on the lines of the file read as they run, in this process."""
    text = changed_text(file.read_text(encoding="utf-8"), changed)
    linecache.cache[str(file)] = (len(text), None, text.splitlines(keepends=True), str(file))


def changed_text(source: str, changed: ast.Module) -> str:
    """The source with the one change of its tree, every other line where it was."""
    tree = ast.parse(source)
    if ast.dump(tree) == ast.dump(changed):
        return source
    return _spliced(source, *_smallest(tree, changed))


def _smallest(node: ast.AST, other: ast.AST) -> tuple[ast.AST, ast.AST]:
    """The innermost pair of nodes that have a place in the text and differ."""
    children = zip(ast.iter_child_nodes(node), ast.iter_child_nodes(other), strict=False)
    pairs = [(a, b) for a, b in children if ast.dump(a) != ast.dump(b)]
    if len(pairs) != 1 or type(node) is not type(other) or not _own_fields_same(node, other):
        return node, other
    inner = _smallest(*pairs[0])
    return inner if hasattr(inner[0], "lineno") else (node, other)


def _own_fields_same(node: ast.AST, other: ast.AST) -> bool:
    """Whether only children differ, and as many of them as there were."""
    for (_, a), (_, b) in zip(ast.iter_fields(node), ast.iter_fields(other), strict=True):
        nodes = isinstance(a, ast.AST) and isinstance(b, ast.AST)
        lists = isinstance(a, list) and isinstance(b, list) and len(a) == len(b)
        if not nodes and not lists and a != b:
            return False
    return True


def _spliced(source: str, node: ast.AST, other: ast.AST) -> str:
    """Another node in the place of one, on as many lines."""
    assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg)
    lines = source.splitlines(keepends=True)
    begin, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[begin].encode()[: node.col_offset].decode()
    tail = lines[end].encode()[node.end_col_offset :].decode()
    whole = isinstance(node, ast.expr) and not isinstance(node, ast.Slice | ast.Starred)
    text, blank = ast.unparse(other), "\n" * (end - begin)
    new = f"{head}({text}{blank}){tail}" if whole else f"{head}{text}{blank}{tail}"
    return "".join([*lines[:begin], new, *lines[end + 1 :]])
