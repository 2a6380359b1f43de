"""`flatline run`: somebody's training script, unchanged, with flatline in it."""

from pathlib import Path
from typing import Annotated

import typer

from flatline.errors import needing

Script = Annotated[Path, typer.Argument(help="The script, as you would type it after `python`.")]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own arguments.")
]
RemedyOption = Annotated[
    str,
    typer.Option("--remedy", help="Causes to take away while it trains: `H09,H10`, or `none`."),
]
Record = Annotated[Path | None, typer.Option("--record", help="Record the training here.")]
Seed = Annotated[int | None, typer.Option("--seed", help="In place of the script's own seed.")]
Output = Annotated[
    Path | None, typer.Option("--output", help="In place of the script's `output_dir`.")
]
Evaluate = Annotated[
    bool,
    typer.Option(
        "--evaluate",
        help="Score held-out rows with the script's reward functions, before and after.",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="End after this many optimizer steps of the script."),
]
MeasuredWith = Annotated[
    str, typer.Option("--measured-with", hidden=True, help="Remedies of the reward, as measured.")
]
PilotOption = Annotated[
    Path | None,
    typer.Option("--pilot", hidden=True, help="Look at it and take two steps; written here."),
]
SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""What comes after the script's name is the script's."""


def run(
    script: Script,
    arguments: Words = None,
    remedy: RemedyOption = "none",
    record: Record = None,
    seed: Seed = None,
    output: Output = None,
    evaluate: Evaluate = False,
    steps: Steps = None,
    measured_with: MeasuredWith = "none",
    pilot: PilotOption = None,
) -> None:
    """Run your own training script as it is, recorded, or with a cause removed."""
    with needing("Running a script"):
        from flatline.script.run import ScriptRun, run_script
    run_script(
        ScriptRun(
            script=script,
            arguments=tuple(arguments or ()),
            remedies=_codes(remedy),
            record=record,
            seed=seed,
            output=output,
            evaluate=evaluate,
            steps=steps,
            measured_with=_codes(measured_with),
            pilot=pilot,
        )
    )


def _codes(text: str) -> tuple[str, ...]:
    listed = [one.strip() for one in text.split(",")]
    return tuple(one for one in listed if one and one != "none")
