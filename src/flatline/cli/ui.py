"""`flatline ui`: the pages live, on this machine only."""

from pathlib import Path
from typing import Annotated

import typer

from flatline.errors import ConfigError

HOST = "127.0.0.1"
PORT = 8321


def ui(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH", help="A run, a folder of runs or a journal; `runs` or `.` where absent."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = PORT,
) -> None:
    """Show runs, rollouts and journals in a browser, updating while a run trains.

    Only this machine can reach it. Stop it with Ctrl-C.
    """
    folder = path or (Path("runs") if Path("runs").is_dir() else Path("."))
    if not folder.is_dir():
        raise ConfigError(
            f"There is no folder {folder}.\n"
            "The pages need a run directory, a folder of runs or a journal.\n"
            "Type `flatline ui runs` where your runs are in `runs`."
        )
    _refuse_taken(port, folder)
    import uvicorn

    from flatline.report.web.app import application

    typer.echo(f"flatline: {folder} at http://{HOST}:{port}/ (Ctrl-C stops it)")
    uvicorn.run(application(folder), host=HOST, port=port, log_level="warning")


def _refuse_taken(port: int, folder: Path) -> None:
    """Before the pages are built: a port in use is found out at once."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} cannot be used: {error.strerror}.\n"
                "Another program, perhaps another `flatline ui`, listens there.\n"
                f"Type `flatline ui {folder} --port {port + 1 if port < 65535 else port - 1}`."
            ) from error
