"""`flatline bench mutants`: change one place of the code that trains, and see who notices."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.bench.mutants.draw import Split
from flatline.cli import options
from flatline.cli.output import print_json, say
from flatline.cli.text import shortened, visible
from flatline.errors import ConfigError, needing

if TYPE_CHECKING:
    from flatline.bench.mutants.study import Study

group = typer.Typer(
    name="mutants",
    invoke_without_command=True,
    help="Change one place of the code that trains, by the hundred, and see who notices.",
)

TRAINER = ("trl.trainer.grpo_trainer", "trl.trainer.utils")

Script = Annotated[Path, typer.Argument(help="A training script, run unchanged.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the script.")
]
Modules = Annotated[
    list[str] | None,
    typer.Option("--module", metavar="NAME", help="Change this module; by default TRL's trainer."),
]
Own = Annotated[
    str | None,
    typer.Option(
        "--script",
        metavar="SCRIPT",
        help="Change your own training script, and list what nobody would notice. "
        "Its arguments follow it, inside the same quotes.",
    ),
]
Half = Annotated[
    Split, typer.Option(help="`test` mutants are for the end: run them once and publish them.")
]
Count = Annotated[int, typer.Option(min=1, help="Mutants to draw, as many of every operator.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps that are compared bit for bit.")]
Seed = Annotated[int, typer.Option(help="Of the draw.")]
Jobs = Annotated[int, typer.Option(min=1, help="Mutants at once; each has one thread.")]
Minutes = Annotated[float | None, typer.Option(help="Start no mutant after this many minutes.")]
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


@group.callback()
def own(
    context: typer.Context,
    script: Own = None,
    count: Count = 100,
    jobs: Jobs = 1,
    minutes: Minutes = None,
    seeds: Seeds = 0,
    out: Out = Path("runs/mutants"),
) -> None:
    """Change one place of the code that trains, by the hundred, and see who notices."""
    if context.invoked_subcommand is not None:
        return
    if script is None:
        raise ConfigError(
            "`flatline bench mutants` changes code that trains, and needs to know whose.\n"
            "`--script train.py` changes your own script; `run SCRIPT` changes TRL beneath one; "
            "`report DIR` prints what was found."
        )
    file, *arguments = shlex.split(script)
    given = {"count": count, "seeds": seeds}
    _run(_study(Path(file), arguments, (), out, **given), jobs, minutes)
    report(out)


@group.command()
def run(
    script: Script,
    arguments: Arguments = None,
    module: Modules = None,
    split: Half = Split.DEVELOPMENT,
    count: Count = 100,
    steps: Steps = 2,
    seed: Seed = 0,
    seeds: Seeds = 0,
    jobs: Jobs = 1,
    minutes: Minutes = None,
    out: Out = Path("runs/mutants"),
) -> None:
    """Draw mutants of what a script runs, train and check each. Continues where it stopped."""
    given = {"split": split, "count": count, "steps": steps, "seed": seed, "seeds": seeds}
    _run(_study(script, arguments or (), module or TRAINER, out, **given), jobs, minutes)
    say(f"Next: `flatline bench mutants report {out}`.")


def _study(
    script: Path, arguments: Sequence[str], modules: Sequence[str], out: Path, **given: Any
) -> "Study":
    """`modules` are what is changed; none for the script itself."""
    with needing("The benchmark"):
        from flatline.bench.mutants.study import Study
    if not script.is_file():
        raise ConfigError(
            f"{script} is not a file.\nMutants are changes to what a training script runs.\n"
            "Give the path of a script that trains with TRL, or with its own loop."
        )
    script = script.resolve()
    return Study(
        folder=out.resolve(),
        script=script,
        arguments=tuple(arguments),
        modules=tuple(modules) or (str(script),),
        **{"split": Split.DEVELOPMENT, **given},
    )


def _run(study: "Study", jobs: int, minutes: float | None) -> None:
    with needing("The benchmark"):
        from flatline.bench.mutants.work import run as run_studies
    left = run_studies([study], jobs=jobs, minutes=minutes, on_done=Progress())
    if any(left):
        say(f"{left[0]} mutants and {left[1]} trainings are left; the same command goes on.")


@group.command()
def report(folder: Folder, peer: Peers = None, json: options.Json = False) -> None:
    """Print what the tried mutants of a study show, or of all studies in a folder."""
    with needing("The benchmark"):
        from flatline.bench.mutants.results import healthy_runs, read
        from flatline.bench.mutants.tables import markdown, score

    if peer:
        from flatline.cli.bench import part

        part("mutant_peers").ask_peers(folder, part("peers_asked").pythons_of(peer), say)
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
