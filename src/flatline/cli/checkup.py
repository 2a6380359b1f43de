"""`flatline checkup`: every probe on the trainer that `flatline train` would build.

It takes the flags of `flatline train`, so a training command becomes a checkup by changing one
word.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli.delivery import (
    Baseline,
    Delivery,
    Everything,
    FailOnOption,
    Github,
    Junit,
    Sarif,
    WriteBaseline,
)
from flatline.cli.train import config_of, train
from flatline.config import RunConfig
from flatline.diagnosis.renderers.ci.fail_on import FailOn
from flatline.errors import needing

if TYPE_CHECKING:
    from flatline.diagnosis.report import Report
    from flatline.training.trainer import Built

Ladder = Annotated[
    bool,
    typer.Option(
        "--ladder", help="Also train a few steps on rewards that need more and more (minutes)."
    ),
]

Tools = Annotated[
    bool,
    typer.Option(
        "--tools", help="Also sample with empty, shuffled and gold tool output (seconds)."
    ),
]

Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        min=0.0,
        help="Seconds after which nothing more is measured; what was not reached is said.",
    ),
]


def checkup(**given: Any) -> None:
    """Check a trainer before training: masks, log-probs, weights, rewards, data. No training."""
    from rich.console import Console

    ladder, tools, file = given.pop("ladder"), given.pop("tools"), given["config"]
    budget = given.pop("budget")
    asked = {one.name: given.pop(one.name) for one in fields(Delivery) if one.name in given}
    deliver = Delivery(**asked, about=Path(file) if file else None)
    config = config_of(given)
    with Console(stderr=True).status("Building the trainer") as status:
        report = look(config, ladder=ladder, tools=tools, budget=budget, say=status.update)
    raise typer.Exit(deliver(report))


def look(
    config: RunConfig,
    *,
    ladder: bool,
    tools: bool = False,
    budget: float | None = None,
    say: Callable[[str], None],
) -> "Report":
    """Build as `flatline train` does, and look."""
    with needing("A checkup"):
        from transformers.utils import logging

        from flatline.diagnosis.checkup import checkup as examine
        from flatline.training.run import check_all, refuse_no_folder
        from flatline.training.trainer import built_aside
    logging.disable_progress_bar()
    refuse_no_folder(Path(config.output_dir))
    with built_aside(config) as built:
        check_all(built)
        say("Sampling the first batch")
        hear = lambda one: say(f"{one.id} {one.name}")  # noqa: E731
        report = examine(built, budget=budget, on_probe=hear)
        report = replace(report, subject=f"{config.task} with {config.model}")
        if tools:
            report = _with_tools(report, built, say)
    return _with_ladder(report, config, say) if ladder else report


def _with_ladder(report: "Report", config: RunConfig, say: Callable[[str], None]) -> "Report":
    from flatline.diagnosis.ladder import climb_ladder
    from flatline.diagnosis.report import rank

    say("Climbing the ladder")
    finding = climb_ladder(config, on_rung=lambda climb: say(f"Ladder: past {climb.rung.part}"))
    return replace(report, findings=tuple(rank([*report.findings, finding])))


def _with_tools(report: "Report", built: "Built", say: Callable[[str], None]) -> "Report":
    from flatline.diagnosis.counterfactual import tool_use, with_tool_use

    use = tool_use(built, on_play=lambda what: say(f"Sampling with {what}"))
    return with_tool_use(report, use, built.task.name)


def _signature() -> inspect.Signature:
    """The flags of `flatline train`; there is nothing that a dry run could leave out."""
    taken = inspect.signature(train).parameters.values()
    return inspect.Signature([*(p for p in taken if p.name != "dry_run"), *_own_flags()])


def _own_flags() -> Iterator[inspect.Parameter]:
    flags = {
        "ladder": (Ladder, False),
        "tools": (Tools, False),
        "budget": (Budget, None),
        "everything": (Everything, False),
        "fail_on": (FailOnOption, FailOn.SUSPECT),
        "junit": (Junit, None),
        "sarif": (Sarif, None),
        "github": (Github, False),
        "baseline": (Baseline, None),
        "write_baseline": (WriteBaseline, None),
    }
    for name, (kind, default) in flags.items():
        only = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, only, default=default, annotation=kind)


checkup.__signature__ = _signature()  # type: ignore[attr-defined]
checkup.__annotations__ = {p.name: p.annotation for p in _signature().parameters.values()}
