"""The text of a mutant reads as it runs, every line where it was."""

import ast
import linecache

import pytest

from flatline.bench.mutants.changed_text import changed_text, show_changed

SOURCE = """def pay(rewards, weights, group):
    # é: columns are counted in bytes
    total = (rewards
             * weights).sum(-1)
    if total.mean() > 0:
        total = total / group
    total.clamp_(min=0)
    return total[1:]
"""


def changed(old, new):
    return ast.parse(SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total / group", "total * group"),
        ("rewards\n             * weights", "weights"),
        ("> 0", ">= 0"),
        ("if total", "if not total"),
        ("    total.clamp_(min=0)", "    pass"),
        ("clamp_(min=0)", "clamp_()"),
        ("[1:]", "[2:]"),
        ("sum(-1)", "mean(-1)"),
    ],
)
def test_the_text_is_the_changed_tree_on_the_same_lines(old, new):
    tree = changed(old, new)
    text = changed_text(SOURCE, tree)
    assert ast.dump(ast.parse(text)) == ast.dump(tree)
    assert len(text.splitlines()) == len(SOURCE.splitlines())
    assert text.splitlines()[-1].startswith("    return total")


def test_without_a_change_the_text_is_the_source():
    assert changed_text(SOURCE, ast.parse(SOURCE)) == SOURCE


def test_whoever_looks_up_a_line_sees_the_code_that_runs(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(SOURCE)
    show_changed(file, changed("total / group", "total * group"))
    assert "total * group" in linecache.getline(str(file), 6)
