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
Other = Annotated[
    Path | None, typer.Option("--compare", help="Another run, laid over this one.", metavar="RUN")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write.")]


def report(source: Source, output: Output = Path("report.html"), compare: Other = None) -> None:
    """Write a run, an experiment or a journal as one self-contained page."""
    from flatline.cli.text import visible

    print(visible(written(source, output, compare)))


def written(source: Path, output: Path, other: Path | None = None) -> str:
    """Write the page, and say where it is."""
    from flatline.report import write_report

    write_report(source, output, other=other)
    size = output.stat().st_size / 1e6
    return f"Wrote {output} ({size:.1f} MB). Open it in a browser; it needs no network."
