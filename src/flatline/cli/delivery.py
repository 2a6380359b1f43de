"""How `checkup` and `diagnose` hand over a report: options, formats, exit code."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatline.cli.output import print_json, tell_runner
from flatline.diagnosis.renderers.ci.fail_on import FailOn, fails
from flatline.errors import ConfigError

if TYPE_CHECKING:  # these would bring numpy
    from flatline.diagnosis.report import Report

PASSED, FAILED = 0, 1
"""Exit codes; 2 is bad input."""

FailOnOption = Annotated[
    FailOn,
    typer.Option("--fail-on", help="Exit with 1 from this level on; `never`: always exit 0."),
]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")
]
Sarif = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Also write SARIF 2.1.0.")
]
Baseline = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="Fail only on what this file does not know."),
]
WriteBaseline = Annotated[
    Path | None,
    typer.Option(
        "--write-baseline", metavar="FILE", help="Write what alarms now as known and accepted."
    ),
]
Github = Annotated[bool, typer.Option("--github", help="Also print GitHub Actions annotations.")]
Everything = Annotated[
    bool, typer.Option("--all", help="List every cause: what was ruled out, what was not tested.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What was asked for."""

    json: bool
    """Print JSON and nothing else on stdout."""
    fail_on: FailOn
    """What makes the command fail."""
    junit: Path | None
    """File for JUnit XML."""
    sarif: Path | None
    """File for SARIF."""
    github: bool
    """Print annotations: after the report, or on stderr where stdout is JSON."""
    about: Path | None
    """The file that findings are shown beside; None where there is none."""
    baseline: Path | None = None
    """What is known and accepted."""
    write_baseline: Path | None = None
    """File for what is known from now on."""
    everything: bool = False
    """List every hypothesis, not only what was found."""

    def __call__(self, report: "Report") -> int:
        """Hand the report over; returns the exit code."""
        report = self._compared(report)
        self._write(report)
        if self.json:
            print_json(report.to_json())
        else:
            from rich.console import Console

            from flatline.diagnosis.renderers.console import to_console

            Console(highlight=False).print(to_console(report, everything=self.everything))
        if self.github:
            from flatline.diagnosis.renderers.ci.github import annotations

            for line in annotations(report, about=self.about):
                tell_runner(line, err=self.json)
        return FAILED if fails(report, self.fail_on) else PASSED

    def _compared(self, report: "Report") -> "Report":
        """With what is known; what is written as known counts as known at once."""
        from flatline.diagnosis.renderers.ci.baseline import against, baseline_of

        if self.baseline is not None and self.write_baseline is not None:
            raise ConfigError(
                "--baseline reads what is known and --write-baseline replaces it.\n"
                "Together they would accept everything. Give one of them."
            )
        target = self.write_baseline
        if target is not None:
            _write_file("--write-baseline", target, lambda: baseline_of(report))
        file = self.baseline or target
        return report if file is None else against(report, file)

    def _write(self, report: "Report") -> None:
        from flatline.diagnosis.renderers.ci.junit import to_junit
        from flatline.diagnosis.renderers.ci.sarif import to_sarif

        if self.junit is not None:
            _write_file("--junit", self.junit, lambda: to_junit(report, fail_on=self.fail_on))
        if self.sarif is not None:
            _write_file("--sarif", self.sarif, lambda: to_sarif(report, about=self.about))


def _write_file(flag: str, path: Path, made: Callable[[], str]) -> None:
    from flatline.files import write_atomically

    try:
        write_atomically(path, [made()])
    except OSError as error:
        raise ConfigError(
            f"{flag} {path} cannot be written: {error.strerror}.\n"
            f"Give a file in a folder that exists and that you may write to: `{flag} out/report`."
        ) from error
