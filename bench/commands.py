"""`flatline bench`: plant every fault, train, look, and count what was found."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli import bench_mutants, options
from flatline.cli.output import print_json, say
from flatline.cli.text import visible
from flatline.errors import needing

if TYPE_CHECKING:
    from bench.plan import Cell

group = typer.Typer(
    name="bench",
    help="Plant every fault, train, diagnose, and count what was found. Goes on where it stopped.",
    invoke_without_command=True,
)
group.add_typer(bench_mutants.group)

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the benchmark.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="A few cells of ten steps: under 10 minutes on two cores.")
]
Jobs = Annotated[int | None, typer.Option(help="Cells at once; as many as cores where absent.")]
Only = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Cells by name, as 'kl-*,healthy-s0'.")
]
Minutes = Annotated[float | None, typer.Option(help="Start no cell after so many minutes.")]
Keep = Annotated[
    bool, typer.Option("--keep-traces", help="Keep what each run recorded (about 0.5 MB a cell).")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the benchmark.")]
PackFile = Annotated[Path, typer.Argument(metavar="FILE", help="What to write, as results.json.")]
Packed = Annotated[
    Path, typer.Argument(metavar="DIR|FILE", help="Folder of the benchmark, or what was packed.")
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer", metavar="NAME=PYTHON", help="Ask rlprobe or rldoctor in that environment too."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the cells and the time, and stop.")]


@group.callback()
def bench(
    ctx: typer.Context,
    out: Out = Path("runs/bench"),
    quick: Quick = False,
    jobs: Jobs = None,
    only: Only = None,
    minutes: Minutes = None,
    keep_traces: Keep = False,
    dry_run: DryRun = False,
) -> None:
    """Plant every fault, train, diagnose, and count what was found. Goes on where it stopped."""
    if ctx.invoked_subcommand is not None:
        return
    from bench.plan import chosen, full_plan, quick_plan
    from bench.pool import How, run_cells, unfinished
    from flatline.experiment.local import Local

    at_once = Local(jobs).jobs if jobs is not None else _cores()
    cells = chosen(quick_plan() if quick else full_plan(), only)
    todo = unfinished(cells, out)
    if dry_run:
        _print_plan(cells, todo, out, at_once)
        return
    say(f"{len(todo)} of {len(cells)} cells to run, {at_once} at once, in {out}.")
    progress = _Progress(len(todo))
    how = How(jobs=at_once, minutes=minutes, keep_traces=keep_traces)
    left = run_cells(todo, out, how, progress)
    if left:
        say(f"{left} cells are left; the same command goes on with them.")
    say(f"Next: `flatline bench report {out}`.")


@group.command()
def pack(folder: Folder, file: PackFile) -> None:
    """Write the results of all finished cells into one small file, which `report` can read."""
    from bench.pack import pack

    say(f"{pack(folder, file)} cells are in {file}.")


@group.command()
def report(folder: Packed, peer: Peers = None, json: options.Json = False) -> None:
    """Print what the finished cells show, as Markdown tables."""
    with needing("The benchmark"):
        from bench.peers_asked import ask_all, compared, pythons_of
        from bench.results import read_all
        from bench.score import score
        from bench.tables import markdown
    pythons = pythons_of(peer or ())
    outcomes = read_all(folder)
    ask_all(outcomes, pythons, say)
    figures = {**score(outcomes), "peers": compared(outcomes)}
    if json:
        print_json(figures)
    else:
        print(visible(markdown(figures)))


@group.command()
def diagnose(folder: Folder) -> None:
    """Diagnose the cells whose traces were kept anew, without training. Checkups stay."""
    from bench.cell import diagnosed_again
    from bench.results import read_all

    outcomes = read_all(folder)
    done = sum(diagnosed_again(one.folder) for one in outcomes)
    say(f"{done} of {len(outcomes)} cells diagnosed again; the others have kept no trace.")


@group.command()
def checkup(folder: Folder) -> None:
    """Take the checkups that finished cells lack, without training."""
    from transformers.utils import logging

    from bench.cell import checked_up
    from bench.results import read_all

    logging.disable_progress_bar()
    outcomes = read_all(folder)
    done = sum(checked_up(one.folder) for one in outcomes)
    say(f"{done} of {len(outcomes)} cells had no checkup and have one now.")


@group.command(hidden=True)
def cell(folder: Path, keep_trace: Annotated[bool, typer.Option("--keep-trace")] = False) -> None:
    """Run the one cell whose plan lies in a folder. `flatline bench` starts this."""
    from transformers.utils import logging

    from bench.cell import run_cell

    logging.disable_progress_bar()
    run_cell(folder, keep_trace=keep_trace)


class _Progress:
    """One line for every cell that has ended."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, cell: "Cell", result: dict[str, Any]) -> None:
        self._done += 1
        say(f"{self._done}/{self._total} {cell.name}: {_in_short(cell, result)}")


def _in_short(cell: "Cell", result: dict[str, Any]) -> str:
    if "crash" in result:
        return f"CRASHED with exit code {result['crash']['exit_code']}, see log.txt"
    if "failure" in result["training"]:
        return f"training failed: {result['training']['failure']}"
    looks = {"checkup": result["checkup"], **result.get("diagnose", {})}
    firsts = [f"{name} {next(iter(look.get('alarms', ())), '-')}" for name, look in looks.items()]
    wanted = f"planted {'/'.join(cell.wanted)}, " if cell.wanted else ""
    return f"{wanted}first {', '.join(firsts)}; {result['seconds']:.0f} s"


def _print_plan(cells: "list[Cell]", todo: "list[Cell]", out: Path, jobs: int) -> None:
    from bench.expected import seconds_of

    missing = {cell.name for cell in todo}
    for one in cells:
        state = "to run" if one.name in missing else "done"
        print(visible(f"{one.kind.value:<12} {state:<7} {one.name}"))
    seconds = sum(seconds_of(todo, out)) / jobs
    print(
        f"\n{len(todo)} of {len(cells)} cells to run, {jobs} at once: {seconds / 3600:.1f} hours."
    )


def _cores() -> int:
    from flatline.experiment.local import cores

    return cores()
