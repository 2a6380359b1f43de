"""`flatline checkup`: every probe on the trainer that `flatline train` would build.

It takes the flags of `flatline train`, so a training command becomes a checkup by changing one
word.
"""

import inspect
import json as json_format
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli.train import config_of, train
from flatline.config import RunConfig
from flatline.errors import ConfigError

if TYPE_CHECKING:
    from flatline.diagnosis import Report

Ladder = Annotated[
    bool,
    typer.Option(
        "--ladder", help="Also train a few steps on rewards that need more and more (minutes)."
    ),
]


def checkup(**given: Any) -> None:
    """Look at a trainer before training: masks, log-probs, weights, rewards, data. No training."""
    from rich.console import Console

    from flatline.cli.findings import exit_code, print_report

    json, ladder = given.pop("json"), given.pop("ladder")
    config = config_of(given)
    with Console(stderr=True).status("Building the trainer") as status:
        report = look(config, ladder=ladder, say=status.update)
    if json:
        print(json_format.dumps(report.to_json(), indent=2))
    else:
        print_report(report)
    raise typer.Exit(exit_code(report))


def look(config: RunConfig, *, ladder: bool, say: Callable[[str], None]) -> "Report":
    """Build as `flatline train` does, and look."""
    try:
        from transformers.utils import logging

        from flatline.examination import checkup as examine
        from flatline.training.run import check_all
        from flatline.training.trainer import build
    except ImportError as error:
        raise ConfigError(
            f"A checkup needs {error.name}, which is not installed.\n"
            "Type `pip install 'flatline[train]'`."
        ) from error
    logging.disable_progress_bar()
    built = build(config)
    check_all(built)
    say("Playing the first batch")
    report = examine(built, on_probe=lambda one: say(f"{one.id} {one.name}"))
    report = replace(report, subject=f"{config.task} with {config.model}")
    return _with_ladder(report, config, say) if ladder else report


def _with_ladder(report: "Report", config: RunConfig, say: Callable[[str], None]) -> "Report":
    from flatline.diagnosis import rank
    from flatline.ladder import climb_ladder

    say("Climbing the ladder")
    finding = climb_ladder(config, on_rung=lambda climb: say(f"Ladder: past {climb.rung.part}"))
    return replace(report, findings=tuple(rank([*report.findings, finding])))


def _signature() -> inspect.Signature:
    """The flags of `flatline train`; there is nothing that a dry run could leave out."""
    taken = inspect.signature(train).parameters.values()
    ladder = inspect.Parameter(
        "ladder", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Ladder
    )
    return inspect.Signature([*(p for p in taken if p.name != "dry_run"), ladder])


checkup.__signature__ = _signature()  # type: ignore[attr-defined]
checkup.__annotations__ = {p.name: p.annotation for p in _signature().parameters.values()}
