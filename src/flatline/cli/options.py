"""Options that several commands share, and what they mean together."""

from typing import TYPE_CHECKING, Annotated

import typer

from flatline.cli.output import json_alone
from flatline.errors import ConfigError

if TYPE_CHECKING:
    from flatline.tasks.base import Problem, Task

LAB = "lab"
LAB_LIMIT, LAB_SAMPLES = 256, 8
"""Problems of the built-in data, and plays of each, unless a number is given."""

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="musique, gsm8k or toolmath.")]
Data = Annotated[
    str, typer.Option("--data", "--datasets", help="`path,config,split[slice]`; several with `;`.")
]
Split = Annotated[str, typer.Option(help="Split to read where --datasets names none.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="At most this many problems; for `lab`, 256 by default.")
]
Retriever = Annotated[str | None, typer.Option(help="MuSiQue: bm25, semantic, hybrid or golden.")]
Noise = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="MuSiQue: share of the other paragraphs kept."),
]


def _alone(context: typer.Context, asked: bool) -> bool:
    if asked:
        context.with_resource(json_alone())
    return asked


Json = Annotated[
    bool,
    typer.Option("--json", callback=_alone, help="Print JSON and nothing else on stdout."),
]


def make_task(name: str, *, retriever: str | None = None, noise: float | None = None) -> "Task":
    """The task, with the options that were given; one it does not have is an error."""
    from flatline import tasks

    given = {"retriever": retriever, "noise": noise}
    return tasks.make_task(
        name, **{key: value for key, value in given.items() if value is not None}
    )


def load_problems(task: "Task", data: str, *, split: str, limit: int | None) -> "list[Problem]":
    """The problems of a spec, cut to the limit."""
    if limit is None and data == LAB:
        limit = LAB_LIMIT
    problems = task.load(data, split=split)[:limit]
    if not problems:
        raise ConfigError(f"`{data}` has no problems.\nGive another file, split or slice.")
    return problems
