"""`flatline diagnose`: what a recorded run or a log shows, most likely cause first."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from flatline.cli import options

Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|LOG",
        help="A run directory, trainer_state.json, or a W&B, TensorBoard, verl, CSV or JSONL log.",
    ),
]


def diagnose(run: Source, json: options.Json = False) -> None:
    """Ask every hypothesis what it sees in a recorded run."""
    from flatline.cli.findings import exit_code, print_report
    from flatline.diagnosis import diagnose as look
    from flatline.diagnosis import save
    from flatline.trace.importers import open_log

    trace = open_log(run)
    report = look(trace, name=str(run))
    save(report, run)
    if json:
        print(json_format.dumps(report.to_json(), indent=2))
    else:
        print_report(report)
    raise typer.Exit(exit_code(report))
