"""`flatline tasks`: looks at tasks and their data, without a model."""

import typer

from flatline.cli import tasks_check, tasks_show

group = typer.Typer(
    name="tasks",
    help="Look at problems and check that scoring is right, without a model.",
    no_args_is_help=True,
)
group.command()(tasks_check.check)
group.command()(tasks_show.show)
