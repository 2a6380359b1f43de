"""The command line. One file per command; a command parses and prints, the work is elsewhere.

Importing this brings neither torch nor numpy: every command imports what it needs when it runs, so
that `flatline --help` answers at once.
"""

import errno
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flatline import __version__
from flatline.cli import (
    bench,
    checkup,
    demo,
    diagnose,
    doctor,
    evaluate,
    explain,
    investigate,
    journal,
    query,
    report,
    run,
    serve,
    show,
    tasks,
    train,
    ui,
    warmstart,
    watch,
)
from flatline.cli.output import outlive_readers
from flatline.cli.text import visible
from flatline.errors import FlatlineError

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What every mistake on a command line is; typer has no public name for it."""
BAD_INPUT, INTERRUPTED = 2, 130
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A full or read-only disk is for the user to fix: it is reported without a traceback."""


class _Root(TyperGroup):
    """Turns errors meant for the user into a message; any other exception keeps its traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _seen():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _seen():
                return super().invoke(ctx)
        except FlatlineError as error:
            print(f"flatline: {visible(str(error))}", file=sys.stderr)
            raise typer.Exit(BAD_INPUT) from error
        except OSError as error:
            if error.errno not in DISK:
                raise
            print(f"flatline: {visible(_disk(error))}", file=sys.stderr)
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt as error:
            print("flatline: interrupted; what has finished is kept.", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from error


@contextmanager
def _seen() -> Iterator[None]:
    """What is quoted of a wrong command line; a script may have put a run's name there."""
    try:
        yield
    except UsageError as error:
        error.message = visible(error.message)  # type: ignore[attr-defined]
        raise


def _disk(error: OSError) -> str:
    return (
        f"{error.filename or 'A file'} cannot be written: {error.strerror}.\n"
        "What was finished before is kept; every file is whole.\n"
        "Make room, or the disk writable, and type the same command again."
    )


app = typer.Typer(
    name="flatline",
    cls=_Root,
    help="Finds out why the reward of an RL run of a language model is flat, and proves it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flatline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Takes what comes before a command."""


app.command(cls=train.TrainCommand)(checkup.checkup)
app.command()(demo.demo)
app.command()(diagnose.diagnose)
app.command()(doctor.doctor)
app.command()(evaluate.evaluate)
app.command()(explain.explain)
app.command(cls=investigate.InvestigateCommand)(investigate.investigate)
app.command()(query.query)
app.command()(report.report)
app.command(cls=run.RunCommand, context_settings=run.SETTINGS)(run.run)
app.command()(serve.serve)
app.command()(show.show)
app.command(cls=train.TrainCommand)(train.train)
app.command()(ui.ui)
app.command()(warmstart.warmstart)
app.command()(watch.watch)
app.add_typer(bench.group())
app.add_typer(journal.group)
app.add_typer(tasks.group)


def main() -> None:
    """Entry point of the `flatline` command."""
    gc.set_threshold(100_000)  # what imports make stays: looking for garbage in it is a tenth of it
    outlive_readers()
    app(prog_name="flatline")


def main_for(task: str) -> None:
    """Entry point of the scripts that are about one task: `train` or `evaluate`, then flags."""
    outlive_readers()
    command, *rest = sys.argv[1:] or ["--help"]
    about_task = command in ("train", "evaluate")
    app([command, task, *rest] if about_task else [command], prog_name="flatline")
