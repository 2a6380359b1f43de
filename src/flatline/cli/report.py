"""`flatline report`: one HTML file that shows why, to send to a colleague."""

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|EXPERIMENT|JOURNAL",
        help="A run directory or log, the folder of an experiment, or a journal.",
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write.")]


def report(source: Source, output: Output = Path("report.html")) -> None:
    """Write a run, an experiment or a journal as one self-contained page."""
    from flatline.cli.text import visible
    from flatline.report import write_report

    write_report(source, output)
    size = output.stat().st_size / 1e6
    print(
        f"Wrote {visible(str(output))} ({size:.1f} MB). Open it in a browser; it needs no network."
    )
