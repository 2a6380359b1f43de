"""`flatline journal`: the folder in which an investigation is written down."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli import options
from flatline.cli.output import print_json
from flatline.cli.text import visible
from flatline.cli.train import TrainCommand, config_of, train
from flatline.errors import needing

if TYPE_CHECKING:
    from flatline.journal.check import Problem
    from flatline.journal.folder import Reading
    from flatline.journal.resolve import Resolution
    from flatline.journal.roadmap import Roadmap

GOOD, FOUND = 0, 1
"""Exit codes; 2 is bad input."""

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the journal.")]
What = Annotated[
    str,
    typer.Argument(
        metavar="Hnn|TITLE", help="One that flatline knows (`flatline explain`), or a title."
    ),
]
Task = Annotated[str | None, typer.Argument(metavar="[TASK]", help="musique, gsm8k or toolmath.")]

group = typer.Typer(
    name="journal",
    help="Write an investigation down: hypotheses, experiments, verdicts, fixes.",
    no_args_is_help=True,
)


def init(**given: Any) -> None:
    """Begin a journal for the run that the flags describe. What exists is kept."""
    from flatline.journal.template import begin

    json, folder = given.pop("json"), given.pop("folder")
    config = config_of(given)
    _refuse_unknown_fault(config.fault)
    begun = begin(folder, config)
    if json:
        print_json({"journal": str(folder), "written": begun.written, "kept": begun.kept})
        return
    _say(f"{len(begun.written)} files written in {folder}/.")
    if begun.kept:
        _say(f"Kept as they were: {', '.join(begun.kept)}.")
    _say(f"Next: `flatline journal next {folder}`.")


def _refuse_unknown_fault(fault: str | None) -> None:
    """What can be planted is known to the training half alone."""
    if fault is None:
        return
    with needing("--fault"):
        from flatline.faults import find
    find(fault)


def _signature() -> inspect.Signature:
    """DIR, then the flags of `flatline train`; the task may also come from the config file."""
    taken = {p.name: p for p in inspect.signature(train).parameters.values()}
    del taken["dry_run"]
    taken["task"] = taken["task"].replace(default=None, annotation=Task)
    folder = inspect.Parameter("folder", inspect.Parameter.KEYWORD_ONLY, annotation=Folder)
    return inspect.Signature([folder, *taken.values()])


init.__signature__ = _signature()  # type: ignore[attr-defined]
init.__annotations__ = {p.name: p.annotation for p in _signature().parameters.values()}
group.command(cls=TrainCommand)(init)


@group.command()
def new(what: What, folder: Folder, json: options.Json = False) -> None:
    """Add a hypothesis file, from flatline's manual or blank."""
    from flatline.journal import Journal
    from flatline.journal.new import add

    file = add(Journal.open(folder), what)
    if json:
        print_json({"file": str(file)}, indent=None)
    else:
        _say(f"{file} written.")


@group.command()
def status(folder: Folder, json: options.Json = False) -> None:
    """Show the status of every hypothesis, and bring the table in README.md up to date."""
    from flatline.journal import Journal, board

    journal = Journal.open(folder)
    reading = journal.read()
    if json:
        print_json(board.to_json(reading))
    else:
        _print_board(reading)
    if not board.is_current(journal, reading):
        with journal.lock():
            board.refresh(journal)
    reading.insist()


@group.command(name="next")
def following(folder: Folder, json: options.Json = False) -> None:
    """Say what to test next and why."""
    from flatline.journal import Journal
    from flatline.journal.roadmap import plan

    roadmap = plan(Journal.open(folder))
    if json:
        print_json(roadmap.to_json())
    else:
        _print_roadmap(roadmap)


@group.command()
def check(folder: Folder, json: options.Json = False) -> None:
    """Look for contradictions, broken links and verdicts without evidence."""
    from flatline.journal import Journal
    from flatline.journal.check import check as look

    problems = look(Journal.open(folder))
    if json:
        print_json({"problems": [problem.to_json() for problem in problems]})
    else:
        _print_problems(problems)
    raise typer.Exit(FOUND if problems else GOOD)


@group.command()
def resolve(folder: Folder, json: options.Json = False) -> None:
    """Ask whether the problem is solved: the five success criteria, written into README.md."""
    from flatline.journal import Journal
    from flatline.journal.resolve import resolve as judge

    resolution = judge(Journal.open(folder))
    if json:
        print_json(resolution.to_json())
    else:
        _print_resolution(resolution)
    raise typer.Exit(GOOD if resolution.resolved else FOUND)


def _print_board(reading: "Reading") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from flatline.journal.board import SHORT, note_of

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("Hypothesis", "Priority", "Status", "Confidence", "Notes"):
        table.add_column(name, overflow="fold", no_wrap=name in ("Priority", "Status"))
    twice = reading.duplicates()
    for entry in reading.entries:
        table.add_row(
            Text(visible(f"{entry.code}: {entry.title}")),
            SHORT[entry.priority],
            entry.label,
            SHORT[entry.confidence] if entry.confidence else "-",
            Text(visible(note_of(entry, twice))),
        )
    for broken in reading.broken:
        table.add_row(Text(visible(broken.file.name)), "?", "?", "-", "cannot be read, see below")
    Console(highlight=False).print(table)
    if twice:
        _say(f"Used by more than one file: {', '.join(twice)}. `flatline journal check` says more.")


def _print_roadmap(roadmap: "Roadmap") -> None:
    if roadmap.advice:
        _say(roadmap.advice + "\n")
    for i, step in enumerate(roadmap.steps):
        if i == 0:
            _say(f"Next: {step.entry.code} {step.entry.title}")
            _say("".join(f"  - {reason}\n" for reason in step.reasons) + f"\n  {step.command}\n")
            continue
        _say(f"{i + 1:>3}. {step.entry.code} {step.entry.title}: {step.reasons[0]}")


def _print_problems(problems: "list[Problem]") -> None:
    for problem in problems:
        place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
        _say(f"{place}: {problem.text} [{problem.kind}]")
    _say(f"{len(problems)} problems." if problems else "The journal holds together.")


def _print_resolution(resolution: "Resolution") -> None:
    _say(resolution.summary)
    for i, criterion in enumerate(resolution.criteria, start=1):
        mark = "holds" if criterion.holds else "does not hold"
        _say(f"{i}. {criterion.name}: {mark}. {criterion.text}")


def _say(text: str) -> None:
    print(visible(text))
