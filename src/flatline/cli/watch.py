"""`flatline watch`: alarms about a run that is still going on, as they come."""

from typing import Annotated

import typer

from flatline.cli.text import visible

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|LOG", help="What `flatline diagnose` reads, and somebody still writes."
    ),
]


def watch(run: Source) -> None:
    """Follow a growing run or log and print alarms as they come.

    Ends when a recorded run is over; of a log nobody knows, so Ctrl-C ends it. Exit code 0: no
    alarm; 1: alarms; 2: nothing that can be read. In a script, `flatline.watch(model, optimizer)`
    is what records a loop; this follows such a record, or any other.
    """
    from flatline.alarms.following import follow

    told = 0
    typer.echo(visible(f"Watching {run}; Ctrl-C ends it."), err=True)
    try:
        for alarm in follow(run):
            told += 1
            typer.echo(visible(str(alarm)))
        ended = "The run is over"
    except KeyboardInterrupt:
        ended = "Stopped"
    typer.echo(f"{ended}: {told or 'no'} {'alarm' if told == 1 else 'alarms'}.", err=True)
    raise typer.Exit(1 if told else 0)
