"""`flatline ui`: the pages live, on this machine unless another address is asked for."""

from pathlib import Path
from typing import Annotated

import typer

from flatline.cli.text import visible
from flatline.errors import ConfigError, needing

PORT = 8321


def ui(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="A run, a log, a folder of them or a journal; by default `runs` or `.`.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = PORT,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at; any but loopback needs a token, see docs/pages.md."
        ),
    ] = "127.0.0.1",
) -> None:
    """Show runs, rollouts and journals in a browser, updating while a run trains.

    Only this machine can reach it unless --host says otherwise. Stop it with Ctrl-C.
    """
    folder = path or (Path("runs") if Path("runs").is_dir() else Path("."))
    if not folder.exists():
        raise ConfigError(
            f"There is no {folder}.\n"
            "The pages need a run directory, a log, a folder of these or a journal.\n"
            "Type `flatline ui runs` where your runs are in `runs`."
        )
    with needing("Live pages", "pages"):
        from flatline.loopback import bind_address, listen
        from flatline.report.web.app import application

    bind = bind_address(host, port, command=f"flatline ui {folder}")
    if bind.warning:
        typer.echo(bind.warning, err=True)
    typer.echo(f"flatline: {visible(str(folder))} at {bind.link} (Ctrl-C stops it)")
    listen(application(folder, bind), bind)
