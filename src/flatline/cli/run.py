"""`flatline run`: somebody's training script, unchanged, with flatline in it.

flatline's own options count before the script and behind it, up to `--`: a `--record` that is
quietly given to a script that parses nothing would cost a whole training. What is behind `--` is
the script's, and so is every flag that flatline does not have.
"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from flatline.cli.text import visible
from flatline.errors import needing

Script = Annotated[Path, typer.Argument(help="The script, as you would type it after `python`.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ARGS]...",
        help="The script's own arguments, with flags that flatline does not have. One that it has "
        "too goes behind `--`: `train.py -- --seed 3`.",
    ),
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
SETTINGS = {"ignore_unknown_options": True}
"""Flags that are not flatline's are the script's."""
END_OF_OWN = "--"


class RunCommand(TyperCommand):
    """Says which of flatline's options were read behind the script, where its own would be."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[: args.index(END_OF_OWN)] if END_OF_OWN in args else args
        before = self.make_parser(ctx)
        before.allow_interspersed_args = False
        values, _, _ = before.parse_args(list(own))
        behind, _, _ = self.make_parser(ctx).parse_args(list(values.get("arguments") or ()))
        flags = [one.opts[0] for one in self.params if one.name in behind and _is_flag(one)]
        if flags and os.environ.get("RANK", "0") == "0":
            _say_taken(flags, str(values["script"]))
        return super().parse_args(ctx, args)


def _is_flag(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _say_taken(flags: list[str], script: str) -> None:
    listed = " and ".join(", ".join(flags).rsplit(", ", 1))
    one = len(flags) == 1
    typer.echo(
        f"flatline: {listed} behind {visible(script)} {'is' if one else 'are'} flatline's own; the "
        f"script does not get {'it' if one else 'them'}. Flags that are meant for the script go "
        f"behind `--`: `flatline run {visible(script)} -- {flags[0]} ...`.",
        err=True,
    )


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
    """Run your own training script as it is, recorded, or with a cause removed.

    The options below count before the script and behind it; behind `--` all is the script's.
    """
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
