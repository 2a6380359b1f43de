"""The text of a module with a change in it: what somebody who made the mistake would read.

Whoever looks up a line of a mutant (a traceback, `flatline.live.where`) must see the code that
runs, not the code that was there before.
"""

import ast
import linecache
from pathlib import Path


def show_changed(file: Path, text: str) -> None:
    """From now on the lines of the file read as they run, in this process."""
    linecache.cache[str(file)] = (len(text), None, text.splitlines(keepends=True), str(file))


def changed_text(source: str, node: ast.AST, other: ast.AST | None) -> str:
    """The source with another node in the place of one, every other line where it was; None takes
    a statement out."""
    if isinstance(node, ast.If | ast.While) and isinstance(other, ast.If | ast.While):
        node, other = node.test, other.test  # only conditions are changed
    return _spliced(source, node, other or ast.Pass())


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
