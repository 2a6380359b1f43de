"""What the site shows of code and kept results: `docs/hooks.py` ends pages with it.

python -m tests.site [PAGE ...]        prints it
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache

import typer
from museum import page as museum
from typer.testing import CliRunner

from flatline.cli import app
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.base import HasProbe, HasSign, Hypothesis
from flatline.hypotheses.symptoms import SYMPTOMS, Symptom
from flatline.trace.importers.aliases import COLUMNS
from tests import capability_table, framework_table
from tests.front_door import RESULTS, ROOT


def hypotheses() -> str:
    """The list, then the manual page of each, as `flatline explain` prints it."""
    probing = sum(isinstance(one, HasProbe) for one in HYPOTHESES)
    judging = sum(one.on_one_batch and not isinstance(one, HasProbe) for one in HYPOTHESES)
    *first, last = [one.id for one in HYPOTHESES if not isinstance(one, HasSign)]
    intro = (
        f"A diagnosis of a recorded run asks all of these but {', '.join(first)} and {last}.\n"
        f"A checkup, before training, asks {probing + judging}: {probing} probe the live trainer, "
        f"{judging} judge the\nfirst batch that it samples as they would a recorded run."
    )
    head = "| code | name | the fault | looks at |\n|---|---|---|---|"
    table = "\n".join([head, *map(_row, HYPOTHESES)])
    manuals = (f"## {one.id} {one.name}\n\n{_below(one.manual())}" for one in HYPOTHESES)
    return "\n\n".join(["## All of them", intro, table, *manuals])


def _row(one: Hypothesis) -> str:
    return f"| {one.id} | `{one.name}` | {one.manual().splitlines()[0]} | {looks(one)} |"


def _below(manual: str) -> str:
    """Headings of a page become headings below the name of its hypothesis."""
    return "\n".join(f"#{line}" if line.startswith("## ") else line for line in manual.splitlines())


def looks(one: Hypothesis) -> str:
    """Where a hypothesis can be seen."""
    ways = {
        "log": one.id in _in_a_log(),
        "recording": isinstance(one, HasSign),
        "live trainer": isinstance(one, HasProbe),
        "first batch": one.on_one_batch and not isinstance(one, HasProbe),
    }
    return ", ".join(name for name, can in ways.items() if can) or "`checkup --ladder`"


@cache
def _in_a_log() -> frozenset[str]:
    """What TRL's own log lets be tested."""
    cells = framework_table.told(framework_table.FRAMEWORKS["trl"]["log"])
    return frozenset(code for code, cell in cells.items() if cell == "yes")


def symptoms() -> str:
    return "\n\n".join(map(_symptom, SYMPTOMS))


def _symptom(symptom: Symptom) -> str:
    parts = [
        f"## {symptom.title}",
        f"{symptom.text} `flatline explain {symptom.name}` prints this.",
    ]
    for kind, codes in symptom.behind.items():
        head = f"| {kind} | | looks at |\n|---|---|---|"
        parts.append("\n".join([head, *(_cause(find(code)) for code in codes)]))
    return "\n\n".join(parts)


def _cause(one: Hypothesis) -> str:
    anchor = f"hypotheses.md#{one.id.lower()}-{one.name}"
    return f"| [{one.id} {one.name}]({anchor}) | {one.manual().splitlines()[0]} | {looks(one)} |"


def names() -> str:
    """Which name of a log fills which column."""
    rows = [f"| `{c}` | {', '.join(f'`{n}`' for n in known)} |" for c, known in COLUMNS.items()]
    return "\n".join(["| column | names, best first |", "|---|---|", *rows])


def flags() -> str:
    """Every option of `flatline train`."""
    return "\n".join(["| flag | default | what |", "|---|---|---|", *_flags("train")])


def _flags(command: str) -> Iterator[str]:
    for one in typer.main.get_command(app).commands[command].params:
        if one.param_type_name == "option":
            said, _, default = one.help.replace("\\[", "[").partition(" [default: ")
            known = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
            yield f"| {known} | {default.removesuffix(']')} | {' '.join(said.split())} |"


def frameworks() -> str:
    """Which hypotheses each thing that a framework leaves lets be tested."""
    parts = (f"### {one}\n\n{framework_table.table(one)}" for one in framework_table.FRAMEWORKS)
    return "\n\n".join(["## Every hypothesis", *parts])


def remedies() -> str:
    from tests import remedy_table  # needs torch

    return f"## Every remedy\n\n{remedy_table.table()}"


def exhibits() -> str:
    """What flatline says of every release in the museum."""
    return museum.page(museum.read()).partition("\n\n")[2]


def benchmark() -> str:
    told = CliRunner().invoke(app, ["bench", "report", str(ROOT / RESULTS)]).stdout
    return f"## Every table\n\n{told}"


MADE: dict[str, Callable[[], str]] = {
    "a-log.md": names,
    "an-investigation.md": remedies,
    "benchmark.md": benchmark,
    "frameworks.md": frameworks,
    "hypotheses.md": hypotheses,
    "museum.md": exhibits,
    "symptoms.md": symptoms,
    "the-lab.md": flags,
    "your-own-loop.md": capability_table.table,
}
"""Page of the site -> what it ends with."""


if __name__ == "__main__":
    for page in sys.argv[1:] or MADE:
        print(f"\n{page}\n\n{MADE[page]()}")
