"""The whole experiment, stage by stage, through the ordinary command line.

    python run.py --dry-run              # print the commands and stop
    python run.py --rehearse             # the same stages, tiny, with SmolLM2
    python run.py --minutes 25           # start no new stage after that; go on with the same line
    python run.py --only train-healthy-0

A stage that is done is skipped: `work/done/STAGE` holds the command that did it. A training that
was broken off goes on from its last checkpoint, so several short sessions make one experiment.
"""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

from stages import Plan, Stage, rehearsal, stages


def conduct(plan: Plan, *, only: str | None, minutes: float | None) -> None:
    """Run what is not done yet."""
    began = time.monotonic()
    for stage in stages(plan):
        if only not in (None, stage.name) or is_done(plan, stage):
            continue
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            print(f"run: {minutes:g} minutes are over; {stage.name} is next.", file=sys.stderr)
            return
        print(f"run: {stage.name}: {shlex.join(stage.words())}", file=sys.stderr)
        _do(plan, stage)


def is_done(plan: Plan, stage: Stage) -> bool:
    """Whether this very command was run to its end."""
    mark = plan.folder / "done" / stage.name
    if not mark.is_file():
        return False
    if mark.read_text(encoding="utf-8").strip() != shlex.join(stage.command):
        sys.exit(
            f"run: {stage.name} was done with another command.\nIts result would be taken for this "
            f"one's.\nDelete {mark} to do it again."
        )
    return True


def _do(plan: Plan, stage: Stage) -> None:
    plan.folder.mkdir(parents=True, exist_ok=True)
    if stage.output is None:
        code = subprocess.run(stage.words(), check=False).returncode
    else:
        partial = stage.output.with_name(f".{stage.output.name}.partial")
        with partial.open("wb") as out:
            code = subprocess.run(stage.words(), stdout=out, check=False).returncode
        partial.replace(stage.output)
    if code not in stage.good:
        sys.exit(
            f"run: {stage.name} ended with {code}.\nMend it and start again: what is done is kept."
        )
    mark = plan.folder / "done" / stage.name
    mark.parent.mkdir(exist_ok=True)
    mark.write_text(shlex.join(stage.command) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/qwen-musique"))
    parser.add_argument("--data", type=Path, help="FOLDER/data where absent")
    parser.add_argument("--pieces", type=Path, help="folder made by `assemble.py split`")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--only", metavar="STAGE")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    plan = Plan(
        store=given.folder,
        folder=given.folder,
        data=given.data or given.folder / "data",
        pieces=given.pieces,
        steps=given.steps,
        seeds=given.seeds,
        rate=given.learning_rate,
    )
    plan = rehearsal(plan) if given.rehearse else plan
    known = [stage.name for stage in stages(plan)]
    if given.only is not None and given.only not in known:
        sys.exit(f"run: there is no stage {given.only!r}.\nThere are: {', '.join(known)}.")
    if given.dry_run:
        for stage in stages(plan):
            target = f" > {shlex.quote(str(stage.output))}" if stage.output else ""
            print(f"# {stage.name}\n{shlex.join(stage.command)}{target}")
        return
    conduct(plan, only=given.only, minutes=given.minutes)


if __name__ == "__main__":
    main()
