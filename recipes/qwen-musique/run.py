"""The whole experiment, stage by stage, through the ordinary command line.

    python run.py --dry-run              # print the commands and stop
    python run.py --rehearse             # the same stages, tiny, with SmolLM2
    python run.py --minutes 25           # stop then; go on with the same line
    python run.py --at-once 3            # trainings that share the GPU
    python run.py --only musique-train-healthy-0

A stage that is done is skipped: `done/STAGE` holds the command that did it. A training that was
broken off goes on from its last checkpoint, so several short sessions make one experiment.
"""

import argparse
import shlex
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

from stages import Plan, Stage, rehearsal, stages


def conduct(plan: Plan, *, only: str | None, minutes: float | None) -> None:
    """Run what is not done yet."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    chosen = [stage for stage in stages(plan) if only in (None, stage.name)]
    waiting = [stage for stage in chosen if not is_done(plan, stage)]
    while waiting:
        if end is None or time.monotonic() < end:
            _do(plan, _together(waiting, plan.at_once), end)
            waiting = [stage for stage in waiting if not is_done(plan, stage)]
        else:
            print(f"run: {minutes:g} minutes are over; {waiting[0].name} is next.", file=sys.stderr)
            return


def _together(waiting: list[Stage], at_once: int) -> list[Stage]:
    """The next stage, and those after it that may run beside it."""
    beside = list(takewhile(lambda stage: stage.beside, waiting))
    return beside[:at_once] or waiting[:1]


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


def _do(plan: Plan, together: list[Stage], end: float | None) -> None:
    """Run stages beside each other, to their end or to that of the time."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    started = [(stage, _start(stage)) for stage in together]
    codes = [_ended(process, end) for _, process in started]
    for (stage, _), code in zip(started, codes, strict=True):
        if stage.output is not None and code is not None:
            _partial(stage.output).replace(stage.output)
        if code in stage.good:
            mark = plan.folder / "done" / stage.name
            mark.parent.mkdir(exist_ok=True)
            mark.write_text(shlex.join(stage.command) + "\n", encoding="utf-8")
    failed = [
        (stage.name, code)
        for (stage, _), code in zip(started, codes, strict=True)
        if code is not None and code not in stage.good
    ]
    if failed:
        name, code = failed[0]
        sys.exit(f"run: {name} ended with {code}.\nMend it and start again: what is done is kept.")


def _start(stage: Stage) -> "subprocess.Popen[bytes]":
    words = stage.words()
    print(f"run: {stage.name}: {shlex.join(words)}", file=sys.stderr)
    if stage.output is None:
        return subprocess.Popen(words)
    with _partial(stage.output).open("wb") as out:
        return subprocess.Popen(words, stdout=out)


def _ended(process: "subprocess.Popen[bytes]", end: float | None) -> int | None:
    """Its exit code; None where the time was over first. It is stopped then: a training goes on
    from its checkpoint another day."""
    try:
        return process.wait(None if end is None else max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        return None


def _partial(output: Path) -> Path:
    return output.with_name(f".{output.name}.partial")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/qwen-musique"))
    parser.add_argument("--data", type=Path, help="FOLDER/data where absent")
    parser.add_argument("--pieces", type=Path, help="folder made by `assemble.py split`")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1, help="trainings that share the GPU")
    parser.add_argument("--a-pass", type=int, default=8, help="plays of one backward pass")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
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
        at_once=given.at_once,
        a_pass=given.a_pass,
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
