"""What README and the page of frameworks say that code or kept results decide.

    python -m tests.front_door            prints the blocks
    python -m tests.front_door --write    puts them into the pages

A block stands between `<!-- begin: NAME (...) -->` and `<!-- end -->`. `tests/test_readme.py`
holds every page against this.
"""

import io
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from museum import page as museum
from rich.console import Console
from typer.testing import CliRunner

import flatline
from flatline.bench.shares import exact_share
from flatline.cli import app
from flatline.hypotheses import HYPOTHESES
from tests.framework_table import FRAMEWORKS, told

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
RESULTS = "docs/benchmark/results.json"
"""Of the benchmark, as they are kept."""
WIDTH = 96
"""Of the terminal that the README shows."""
BLOCK = re.compile(
    r"<!-- begin: ([\w-]+) \(python -m tests\.front_door --write\) -->\n(.*?)<!-- end -->",
    re.DOTALL,
)
Blocks = dict[str, Callable[[], str]]


def blocks_of(page: str) -> dict[str, str]:
    """What a page has between its marks."""
    return {found[1]: found[2].strip("\n") for found in BLOCK.finditer(page)}


def written(page: str, blocks: Blocks) -> str:
    """The page with what belongs between its marks."""

    def put(found: re.Match[str]) -> str:
        begin = found[0].partition("\n")[0]
        return f"{begin}\n{blocks[found[1]]()}\n<!-- end -->"

    return BLOCK.sub(put, page)


# -- README


def answer() -> str:
    """What the README's first lines print: the answer, and what could not be tested."""
    first, *_, last = shown(EXAMPLES / "trainer_state.json").split("\n\n")
    return f"```text\n{first}\n...\n{last}\n```"


def cause() -> str:
    """The first cause of the recorded run; the others are left out."""
    first, *_ = shown(EXAMPLES / "recorded").split("\n\n")
    return f"```text\n{first}\n...\n```"


def shown(run: Path) -> str:
    """A report as a terminal shows it."""
    out = io.StringIO()
    Console(width=WIDTH, highlight=False, file=out).print(flatline.diagnose(run))
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def evidence() -> str:
    """How far each kind of evidence leads, from the kept benchmark."""
    rows = {row["evidence"]: row["top"]["1"] for row in bench()["ablation"]}
    named = {
        "a log": rows["the trainer's log alone"],
        "a recording": rows["and tokens and weights (everything: diagnose)"],
        "a live trainer, before it trains": rows["probes alone (checkup)"],
    }
    asks = {
        "a log": "`flatline diagnose trainer_state.json`",
        "a recording": '`flatline.attach(trainer, "runs/x")`, then `flatline diagnose runs/x`',
        "a live trainer, before it trains": "`flatline.checkup(trainer)`",
    }
    shows = {
        "a log": "whether the reward moves, and what curves can show: a KL that explodes, dead "
        "groups, completions that are cut or collapse",
        "a recording": "every token: who wrote it, whether it was trained, what sampler and "
        "trainer made of it",
        "a live trainer, before it trains": "each stage of one step against its definition, down "
        "to the line of code",
    }
    head = ["| you have | type | it shows | names the planted fault |", "|---|---|---|---|"]
    lines = [f"| {one} | {asks[one]} | {shows[one]} | {share(named[one])} |" for one in named]
    return "\n".join([*head, *lines])


def figures() -> str:
    """Five figures, each with the page that says what it is worth."""
    shown = [name for name in museum.names() if name in museum.read()]
    kept = museum.read()
    right = sum(museum.named(museum.exhibit(one), kept[one]["bad"]) for one in shown)
    quiet = sum(museum.silent(kept[one]["good"]) for one in shown)
    hurting = accuracy()["all that hurt"]["one answer"]
    held_out = next(row for row in bench()["healthy"] if row["split"] == "held-out")
    rows = [
        (
            "planted faults that hurt, named as the one answer",
            share(hurting),
            "[benchmark](docs/benchmark.md)",
        ),
        (
            "healthy setups that nobody had looked at, with a false alarm",
            share(held_out["by_look"]["either"]),
            "[benchmark](docs/benchmark.md#healthy-runs)",
        ),
        (
            "scripts by writers who had not seen flatline, last of ten rounds: false alarms; "
            "mistakes named",
            f"{strangers('false alarm', 'tenth')}; {strangers('named', 'tenth-faulty')}",
            "[strangers](docs/strangers.md)",
        ),
        (
            "real releases with a real bug: named; the release that fixed it: silent",
            f"{right} of {len(shown)}; {quiet} of {len(shown)}",
            "[museum](docs/museum.md)",
        ),
        (
            "random changes of the training code that train otherwise: an alarm (unseen before)",
            mutants(),
            "[mutants](docs/mutants.md)",
        ),
    ]
    head = ["| measured | result | what it is worth |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


@cache
def bench() -> dict:
    kept = str(ROOT / RESULTS)
    return json.loads(CliRunner().invoke(app, ["bench", "report", kept, "--json"]).stdout)


def accuracy() -> dict:
    """Runs that are counted -> look -> how many have their fault first."""
    rows = [row for row in bench()["accuracy"] if row["top"] == 1 and not row["alike"]]
    return {row["set"]: row["by_look"] for row in rows}


@cache
def mutants() -> str:
    """Share of alarms on the mutants that nothing was mended for."""
    kept = ROOT / "docs" / "mutants" / "fifth"
    told = CliRunner().invoke(app, ["bench", "mutants", "report", str(kept)]).stdout
    line = next(one for one in told.splitlines() if one.startswith("| change the training: "))
    return line.split("|")[2].strip().replace("%", " %")


def strangers(word: str, *kinds: str) -> str:
    """Share of the scripts of these kinds that were judged so when they were first asked about."""
    judged = json.loads((ROOT / "docs" / "strangers" / "judged.json").read_text())
    words = [one for kind in kinds for one in judged[kind].values()]
    return share(exact_share(sum(one.startswith(word) for one in words), len(words)))


def share(one: dict) -> str:
    part = one["count"] / one["of"]
    interval = f"({part:.0%}; {one['low']:.0%} to {one['high']:.0%})".replace("%", " %")
    return f"{one['count']} of {one['of']} {interval}"


# -- other trainers


def told_of() -> str:
    """How many hypotheses each thing that a framework leaves lets be tested."""
    rows = [
        f"| {framework} | {source} | {sum(cell == 'yes' for cell in told(write).values())} |"
        for framework, sources in FRAMEWORKS.items()
        for source, write in sources.items()
    ]
    head = [
        f"| framework | what it leaves | hypotheses told, of {len(HYPOTHESES)} |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *rows])


PAGES: dict[str, Blocks] = {
    "README.md": {"answer": answer, "cause": cause, "evidence": evidence, "figures": figures},
    "docs/frameworks.md": {"told": told_of},
}


def main(words: Iterable[str]) -> None:
    for name, blocks in PAGES.items():
        page = ROOT / name
        if "--write" in words:
            page.write_text(written(page.read_text(), blocks))
        else:
            for block, made in blocks.items():
                print(f"\n{name}: {block}\n\n{made()}")


if __name__ == "__main__":
    main(sys.argv[1:])
