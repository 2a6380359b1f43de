"""The table of docs/an-investigation.md: every hypothesis, its remedy or why it has none, and its test.

python -m tests.remedy_table            prints it
python -m tests.remedy_table --write    puts it into the page
"""

import sys
from pathlib import Path

from flatline.hypotheses import HYPOTHESES
from flatline.remedies import REMEDIES, WITHOUT
from tests.test_remedies import LONGER, REPAIRED

PAGE = Path(__file__).parents[1] / "docs" / "remedies.md"
BEGIN, END = "<!-- made: python -m tests.remedy_table --write -->", "<!-- made end -->"
OTHER_TESTS = {"H23": "dropout", "H25": "half precision", "H39": "a right answer"}
"""Repairs with a test of their own, by words of its name."""


def table() -> str:
    lines = [
        "| hypothesis | this run ... | repaired in a test | as an argument |",
        "|---|---|---|---|",
    ]
    for one in HYPOTHESES:
        named = f"{one.id} {one.name}"
        if one.id in WITHOUT:
            lines.append(f"| {named} | none: {WITHOUT[one.id]} | - | - |")
            continue
        remedy = REMEDIES[one.id]
        setting = f"`{remedy.setting}`" if remedy.setting else "-"
        lines.append(f"| {named} | {remedy.what} | {_test(one.id)} | {setting} |")
    return "\n".join(lines)


def _test(code: str) -> str:
    if code in REPAIRED:
        return f"`{REPAIRED[code].__name__}`"
    if code in OTHER_TESTS:
        return OTHER_TESTS[code]
    same = "no completion is cut" if code in LONGER else "it has that value"
    return f"the argument; unchanged where {same}"


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(table())
