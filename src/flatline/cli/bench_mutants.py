"""`flatline bench mutants`: change one place of the code that trains, and see who notices."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flatline.bench.mutants.draw import Split
from flatline.cli import options
from flatline.cli.output import print_json, say
from flatline.cli.text import shortened, visible
from flatline.errors import ConfigError

group = typer.Typer(
    name="mutants",
    help="Change one place of the code that trains, by the hundred, and see who notices.",
)

TRAINER = ("trl.trainer.grpo_trainer", "trl.trainer.utils")

Script = Annotated[Path, typer.Argument(help="A training script, run unchanged.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the script.")
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module", metavar="NAME", help="Change this module; TRL's trainer where absent."
    ),
]
Own = Annotated[bool, typer.Option("--own", help="Change the script itself, and nothing else.")]
Half = Annotated[
    Split, typer.Option(help="`test` mutants are for the end: run them once and publish them.")
]
Count = Annotated[int, typer.Option(min=1, help="Mutants to draw, as many of every operator.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps that are compared bit for bit.")]
Seed = Annotated[int, typer.Option(help="Of the draw.")]
Jobs = Annotated[int, typer.Option(min=1, help="Mutants at once; each has one thread.")]
Minutes = Annotated[float | None, typer.Option(help="Start no mutant after so many minutes.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the results.")]


@group.command()
def run(
    script: Script,
    arguments: Arguments = None,
    module: Modules = None,
    own: Own = False,
    split: Half = Split.DEVELOPMENT,
    count: Count = 100,
    steps: Steps = 2,
    seed: Seed = 0,
    jobs: Jobs = 1,
    minutes: Minutes = None,
    out: Out = Path("runs/mutants"),
) -> None:
    """Draw mutants of what a script runs, train and check up each. Goes on where it stopped."""
    try:
        from flatline.bench.mutants.study import Study
        from flatline.bench.mutants.study import run as run_study
        from flatline.bench.mutants.trial import Setup
    except ImportError as error:
        raise options.not_installed("The benchmark", error) from error
    if not script.is_file():
        raise ConfigError(
            f"{script} is no file.\nMutants are changes of what a training script runs.\n"
            "Give the path of a script that trains with TRL."
        )
    script = script.resolve()
    study = Study(
        setup=Setup(script=script, arguments=tuple(arguments or ()), steps=steps),
        modules=(str(script),) if own else tuple(module or TRAINER),
        split=split,
        count=count,
        seed=seed,
    )
    progress = _Progress(count)
    left = run_study(study, out.resolve(), jobs=jobs, minutes=minutes, on_done=progress)
    if left:
        say(f"{left} mutants are left; the same command goes on with them.")
    say(f"Next: `flatline bench mutants report {out}`.")


@group.command()
def report(folder: Folder, json: options.Json = False) -> None:
    """Print what the tried mutants show."""
    from flatline.bench.mutants.study import results
    from flatline.bench.mutants.tables import markdown, score

    rows = results(folder)
    if not rows:
        raise ConfigError(
            f"{folder} has no results.\nThere is nothing to count yet.\n"
            f"Type `flatline bench mutants run SCRIPT --out {folder}`."
        )
    figures = score(rows)
    if json:
        print_json(figures)
    else:
        print(visible(markdown(figures)))


class _Progress:
    """One line for every mutant."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, row: dict[str, Any]) -> None:
        self._done += 1
        change = row["mutation"]
        alarms = row.get("checkup", {}).get("alarms", [])
        said = f", first {alarms[0]['hypothesis']}" if alarms else ""
        place = f"{change['module']}:{change['line']} {change['operator']}"
        code = shortened(f"{change['before']} -> {change['after'] or 'nothing'}", limit=80)
        say(f"{self._done}/{self._total} {row['effect']}{said}: {place}: {code}")
