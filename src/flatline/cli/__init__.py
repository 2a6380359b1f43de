"""The command line. One file per command; a command parses and prints, the work is elsewhere.

Importing this brings neither torch nor numpy: every command imports what it needs when it runs, so
that `flatline --help` answers at once.
"""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from flatline.cli import (
    checkup,
    demo,
    diagnose,
    evaluate,
    explain,
    investigate,
    journal,
    query,
    report,
    show,
    tasks,
    train,
    ui,
    warmstart,
)
from flatline.cli.text import visible
from flatline.errors import FlatlineError

BAD_INPUT, INTERRUPTED = 2, 130


class _Root(TyperGroup):
    """Turns errors meant for the user into a message; any other exception keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlatlineError as error:
            print(f"flatline: {visible(str(error))}", file=sys.stderr)
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="flatline",
    cls=_Root,
    help="Finds out why the reward of an RL run of a language model is flat, and proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(cls=train.TrainCommand)(checkup.checkup)
app.command()(demo.demo)
app.command()(diagnose.diagnose)
app.command()(evaluate.evaluate)
app.command()(explain.explain)
app.command(cls=train.TrainCommand)(investigate.investigate)
app.command()(query.query)
app.command()(report.report)
app.command()(show.show)
app.command(cls=train.TrainCommand)(train.train)
app.command()(ui.ui)
app.command()(warmstart.warmstart)
app.add_typer(journal.group)
app.add_typer(tasks.group)


def main() -> None:
    """Entry point of the `flatline` command."""
    app(prog_name="flatline")


def main_for(task: str) -> None:
    """Entry point of the scripts that are about one task: `train` or `evaluate`, then flags."""
    command, *rest = sys.argv[1:] or ["--help"]
    about_task = command in ("train", "evaluate")
    app([command, task, *rest] if about_task else [command], prog_name="flatline")
