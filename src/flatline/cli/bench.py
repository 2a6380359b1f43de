"""`flatline bench`: all of the benchmark in a clone of the repository, mutants where installed.

The benchmark of planted faults and the tools that it is compared with are in `bench/`, beside
`src/`. They are for whoever works on flatline, and no part of what is installed.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

import flatline
from flatline.cli import bench_mutants
from flatline.errors import ConfigError

CLONE = Path(flatline.__file__).parents[2]


def part(name: str) -> ModuleType:
    """A module of `bench/`."""
    if not _is_here():
        raise ConfigError(
            "The benchmark of planted faults, and the tools it is compared with, are not installed "
            "with flatline.\nThey are in its repository: in a clone of it, type "
            '`pip install -e ".[train]"` and the same command again.\n'
            "`flatline bench mutants` is here."
        )
    if str(CLONE) not in sys.path:
        sys.path.append(str(CLONE))
    return import_module(f"bench.{name}")


def _is_here() -> bool:
    return (CLONE / "bench" / "commands.py").is_file()


class _Installed(TyperGroup):
    """Whatever is typed but `mutants` is about what is not installed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            part("commands")
        return super().resolve_command(ctx, args)


def _installed() -> typer.Typer:
    found = typer.Typer(
        name="bench",
        cls=_Installed,
        help="Change one place of your training script, and see who notices.",
        invoke_without_command=True,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    found.add_typer(bench_mutants.group)

    @found.callback()
    def bench(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            part("commands")

    return found


def group() -> typer.Typer:
    """The commands that are there."""
    found = part("commands").group if _is_here() else _installed()
    assert isinstance(found, typer.Typer)
    return found
