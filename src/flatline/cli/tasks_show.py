"""`flatline tasks show`: prints one problem readably."""

from typing import Annotated

import typer

from flatline.cli import options
from flatline.errors import ConfigError


def show(
    task: options.TaskName,
    data: options.Data = options.LAB,
    split: options.Split = "validation",
    index: Annotated[int, typer.Option(min=0, help="Which problem, from 0.")] = 0,
    retriever: options.Retriever = None,
    noise: options.Noise = None,
) -> None:
    """Print one problem, its tools and a play of the gold script."""
    from rich.console import Console

    from flatline.cli.transcript import show_problem

    made = options.make_task(task, retriever=retriever, noise=noise)
    problems = made.load(data, split=split)
    if index >= len(problems):
        raise ConfigError(
            f"--index {index} is past the end: `{data}` has {len(problems)} problems.\n"
            f"Give one from 0 to {len(problems) - 1}."
        )
    Console().print(show_problem(made, problems[index]))
