"""The text of a mutant reads as it runs, every line where it was."""

import ast
import linecache

from flatline.bench.mutants.changed_text import show_changed
from flatline.bench.mutants.sites import Sites

SOURCE = """def pay(rewards, weights, group):
    # \u00e9: columns are counted in bytes
    total = (rewards
             * weights).sum(-1)
    if total.mean() > 0:
        total = total / group
    total.clamp_(min=0)
    shown = "\u00e9" + str(group)
    return total[1:]
"""
LINES = range(1, 10)


def test_the_text_of_every_mutant_is_its_changed_tree_on_the_same_lines():
    possible = Sites(SOURCE, "pay").at(LINES)
    assert len({one.operator for one in possible}) > 5
    for mutation in possible:
        sites = Sites(SOURCE, "pay")
        text = sites.text(mutation)
        assert ast.dump(ast.parse(text)) == ast.dump(sites.put(mutation)), mutation.name
        assert len(text.splitlines()) == len(SOURCE.splitlines())


def test_whoever_looks_up_a_line_sees_the_code_that_runs(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(SOURCE)
    show_changed(file, SOURCE.replace("total / group", "total * group"))
    assert "total * group" in linecache.getline(str(file), 6)
