"""Every hypothesis, its remedy or why it has none, and its test.

The site ends docs/an-investigation.md with it.

python -m tests.remedy_table            prints it
"""

from flatline.hypotheses import HYPOTHESES
from flatline.remedies import REMEDIES, WITHOUT
from tests.test_remedies import LONGER, REPAIRED

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


if __name__ == "__main__":
    print(table())
