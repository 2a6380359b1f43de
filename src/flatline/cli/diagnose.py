"""`flatline diagnose`: what a recorded run or a log shows, most likely cause first."""

from pathlib import Path
from typing import Annotated

import typer

from flatline.cli import delivery, options
from flatline.cli.several import tell_several
from flatline.cli.text import visible
from flatline.diagnosis.renderers.ci.fail_on import FailOn
from flatline.errors import ConfigError

Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|LOG",
        help="A run directory, or a log or rollouts of TRL, verl, prime-rl, OpenRLHF, NeMo-RL, "
        "SkyRL or verifiers; W&B, MLflow, TensorBoard, CSV or JSONL.",
    ),
]
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|LOG...",
        help="A run directory, or a log or rollouts of TRL, verl, prime-rl, OpenRLHF, NeMo-RL, "
        "SkyRL or verifiers; W&B, MLflow, TensorBoard, CSV or JSONL; wandb:ENTITY/PROJECT/RUN, "
        "mlflow:URI#RUN or trackio:PROJECT/RUN. Several, or a folder of several: what differs.",
    ),
]
Correct = Annotated[
    str | None,
    typer.Option(
        metavar="PART",
        help="The part of the reward that says whether an answer is right, where the run does not "
        "say so.",
    ),
]
To = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER",
        help="Also write it to a tracked run: wandb:PROJECT/RUN, mlflow:URI#RUN, "
        "tensorboard:FOLDER or trackio:PROJECT/RUN. May be given several times.",
    ),
]


def diagnose(
    runs: Sources,
    everything: delivery.Everything = False,
    json: options.Json = False,
    fail_on: delivery.FailOnOption = FailOn.SUSPECT,
    junit: delivery.Junit = None,
    sarif: delivery.Sarif = None,
    github: delivery.Github = False,
    to: To = None,
    correct: Correct = None,
    baseline: delivery.Baseline = None,
    write_baseline: delivery.WriteBaseline = None,
) -> None:
    """Ask every hypothesis what it sees in a recorded run."""
    from flatline.diagnosis.renderers.trackers import parse, publish
    from flatline.diagnosis.report import diagnose as look
    from flatline.diagnosis.report import save
    from flatline.trace.folder import RUN_FILE
    from flatline.trace.importers.several import logs_in

    found = [path for given in runs for path in logs_in(given)]
    if len(found) > 1:
        if any((junit, sarif, github, to, baseline, write_baseline)):
            raise _about_one(len(found))
        raise typer.Exit(tell_several(found, json=json, fail_on=fail_on, correct=correct))
    targets = [parse(text) for text in to or ()]
    report = look(found[0], correct=correct)
    run = Path(found[0])
    save(report, run)
    file = run / RUN_FILE
    deliver = delivery.Delivery(
        json=json,
        fail_on=fail_on,
        junit=junit,
        sarif=sarif,
        github=github,
        about=file if file.is_file() else run,
        baseline=baseline,
        write_baseline=write_baseline,
        everything=everything,
    )
    code = deliver(report)
    for target in targets:
        typer.echo(visible(f"Written to {publish(report, target)}."), err=True)
    raise typer.Exit(code)


def _about_one(runs: int) -> ConfigError:
    return ConfigError(
        f"{runs} runs were given, and --junit, --sarif, --github, --to and the baseline are about "
        "one.\nGive these options with one run."
    )
