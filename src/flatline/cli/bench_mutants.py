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
Seeds = Annotated[
    int,
    typer.Option(
        min=0, help="Train those that learn differently to the end, with this many seeds."
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME=PYTHON", help="Ask rlprobe or rldoctor about the traces."),
]
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
    seeds: Seeds = 0,
    jobs: Jobs = 1,
    minutes: Minutes = None,
    out: Out = Path("runs/mutants"),
) -> None:
    """Draw mutants of what a script runs, train and check up each. Goes on where it stopped."""
    try:
        from flatline.bench.mutants.study import Study
        from flatline.bench.mutants.work import run as run_studies
    except ImportError as error:
        raise options.not_installed("The benchmark", error) from error
    if not script.is_file():
        raise ConfigError(
            f"{script} is no file.\nMutants are changes of what a training script runs.\n"
            "Give the path of a script that trains with TRL."
        )
    script = script.resolve()
    study = Study(
        folder=out.resolve(),
        script=script,
        arguments=tuple(arguments or ()),
        modules=(str(script),) if own else tuple(module or TRAINER),
        split=split,
        count=count,
        seed=seed,
        steps=steps,
        seeds=seeds,
    )
    left = run_studies([study], jobs=jobs, minutes=minutes, on_done=Progress())
    if any(left):
        say(f"{left[0]} mutants and {left[1]} trainings are left; the same command goes on.")
    say(f"Next: `flatline bench mutants report {out}`.")


@group.command()
def report(folder: Folder, peer: Peers = None, json: options.Json = False) -> None:
    """Print what the tried mutants of a study show, or of all studies in a folder."""
    from flatline.bench.mutants.results import ask_peers, healthy_runs, read
    from flatline.bench.mutants.tables import markdown, score
    from flatline.bench.peers_asked import pythons_of

    ask_peers(folder, pythons_of(peer or ()), say)
    figures = score(read(folder), healthy_runs(folder))
    if json:
        print_json(figures)
    else:
        print(visible(markdown(figures)))


class Progress:
    """One line for every mutant, and for every whole training."""

    def __init__(self) -> None:
        self._done = 0

    def __call__(self, row: dict[str, Any]) -> None:
        self._done += 1
        if "seed" in row:
            told = row.get("error") or f"reward {row.get('reward')}"
            say(f"{self._done} seed {row['seed']}, {told}: {_change(row['mutation'])}")
            return
        alarms = row.get("checkup", {}).get("alarms", [])
        said = f", first {alarms[0]['hypothesis']}" if alarms else ""
        begins = f" at {row['stage']}" if "stage" in row else ""
        say(f"{self._done} {row['effect']}{begins}{said}: {_change(row['mutation'])}")


def _change(mutation: dict[str, Any] | None) -> str:
    if mutation is None:
        return "nothing changed"
    code = shortened(f"{mutation['before']} -> {mutation['after'] or 'nothing'}", limit=80)
    return f"{mutation['module']}:{mutation['line']} {mutation['operator']}: {code}"
