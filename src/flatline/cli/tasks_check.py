"""`flatline tasks check`: is gold the maximum, and every spoiled play lower?"""

from typing import TYPE_CHECKING, Annotated

import typer

from flatline.cli import options
from flatline.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flatline.tasks.base import Problem
    from flatline.tasks.check import Ceiling, CheckReport

SHOWN = 20
"""Violations printed; --json has all of them."""


def check(
    task: options.TaskName,
    data: options.Data = options.LAB,
    split: options.Split = "validation",
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many problems.")] = None,
    retriever: options.Retriever = None,
    noise: options.Noise = None,
    json: options.Json = False,
) -> None:
    """Play a gold script and spoiled ones on every problem; exit 1 where a reward is wrong."""
    from flatline.tasks.check import check as check_problems

    made = options.make_task(task, retriever=retriever, noise=noise)
    problems = made.load(data, split=split)[:limit]
    report = check_problems(made, _tracked(problems))
    if json:
        print_json(report.to_json())
    else:
        _print(report)
    raise typer.Exit(0 if report.passed else 1)


def _tracked(problems: "list[Problem]") -> "Iterable[Problem]":
    """The problems, with a bar on stderr where somebody watches."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        problems,
        description="checking",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _print(report: "CheckReport") -> None:
    from flatline.cli.text import visible

    for violation in report.violations[:SHOWN]:
        print(visible(f"{violation.problem}: {violation.why} ({violation.reward:.3f})"))
    if len(report.violations) > SHOWN:
        print(f"... and {len(report.violations) - SHOWN} more; --json lists all")
    print(f"{report.problems} problems, {len(report.violations)} violations")
    if report.ceiling is not None:
        print(_ceiling(report.ceiling))


def _ceiling(ceiling: "Ceiling") -> str:
    hops = ", ".join(f"{hop} hops {share.value:.3f}" for hop, share in ceiling.per_hop.items())
    return (
        f"recall with {ceiling.retriever} when every sub-question is asked: "
        f"{ceiling.recall.value:.3f} ({hops}), n={ceiling.recall.n}"
    )
