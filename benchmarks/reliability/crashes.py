"""Strikes flatline at random moments, and looks for what is lost.

    python benchmarks/reliability/crashes.py [--seed 0] [--only record,journal] [--share 1.0]

Every trial: the work begins in a process of its own and says what it has completed; at a random
moment the fault strikes; then everything that was said to be complete must be there, and the next
command must go on. Needs Linux and the right to mount a small disk (a tmpfs). 200 trials take about
a quarter of an hour on two cores; `--share 0.1` makes a tenth of them.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parent.parent.parent))

from processes import Lost, done_by, forked
from strikes import FAULTS, Fault, small_disk
from works import READY, Work
from works_runs import WORKS, Investigate

from flatline.trace import lock

BESIDE = 60.0
"""Seconds within which a command beside a process that hangs must have answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one strike."""

    work: str
    fault: str
    completed: int
    """Things that were claimed before the process ended."""
    ended: int
    """Exit code; negative for a signal."""
    lost: str
    """What, or nothing."""
    said: str
    """All that was printed to the user, of the struck process and of the next command."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="works, separated by commas")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials of each work")
    parser.add_argument("--said", action="store_true", help="print what the user reads")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    works = [one() for one in WORKS if not given.only or one.name in given.only.split(",")]
    lock.PATIENCE, lock.SAY_AFTER = 1.0, 0.3  # of forked processes too: a trial is short
    with tempfile.TemporaryDirectory() as scratch:
        trials = list(_trials(works, given, rng, Path(scratch)))
    _report(trials)
    sys.exit(any(trial.lost for trial in trials))


def _trials(
    works: list[Work], given: argparse.Namespace, rng: random.Random, scratch: Path
) -> Iterator[Trial]:
    number = itertools.count()
    for work in works:
        _warm(work, scratch)
        for fault in FAULTS:
            for _ in range(max(1, round(work.trials * given.share))):
                trial = None
                while trial is None:  # the work may have ended before the moment came
                    at = scratch / f"trial-{next(number)}"
                    with small_disk(at / "disk") as disk:
                        trial = _struck(work, fault, disk, at, rng)
                if given.said or trial.lost:
                    lost = f"LOST {trial.lost}" if trial.lost else "nothing lost"
                    print(f"{trial.work}, {trial.fault}, exit {trial.ended}: {lost}\n{trial.said}")
                yield trial
            print(f"{work.name}, {fault.name}: done", file=sys.stderr, flush=True)


def _warm(work: Work, scratch: Path) -> None:
    """What is imported and made once for all trials."""
    if work.name == "train":
        import torch

        import flatline.training.run  # noqa: F401

        torch.set_num_threads(1)
    if isinstance(work, Investigate):
        made = done_by(lambda: work.rehearse(scratch), scratch / "rehearsal", seconds=120)
        if made.code:
            raise SystemExit((scratch / "rehearsal").read_text())
        work.verdict, work.traces = json.loads(made.lines[0]), scratch / "traces"
    if work.span is None:
        work.span = _seconds_of(work, scratch / f"{work.name}-undisturbed")


def _seconds_of(work: Work, folder: Path) -> float:
    """From the beginning of the work to its end, where nothing strikes it."""
    folder.mkdir()
    _must(lambda: work.prepare(folder), folder / "said", 60)
    child = forked(lambda: work.do(folder), folder / "said")
    child.until(120)
    start = time.monotonic()
    child.hear(300)
    seconds = time.monotonic() - start
    if child.end():
        raise SystemExit((folder / "said").read_text())
    return seconds


def _struck(work: Work, fault: Fault, disk: Path, at: Path, rng: random.Random) -> Trial | None:
    said = at / "said"
    _must(lambda: work.prepare(disk), said, 60)

    def armed() -> None:
        fault.arm(disk)
        work.do(disk)

    child = forked(armed, said)
    if not child.until(120):
        raise SystemExit(f"{work.name} did not begin:\n{said.read_text()}")
    assert work.span is not None
    child.hear(rng.uniform(0.0, work.span))
    if child.code is not None:
        child.end()
        return None
    fault.strike(child, disk)
    child.hear(fault.lasts)
    lost, claims = "", []
    try:
        if fault.hangs:
            _must(lambda: work.beside(disk), said, BESIDE)
        ended = child.end()
        claims = [line for line in child.lines if line != READY] + work.left(disk)
        fault.mend(disk)
        if claims:
            _must(lambda: work.check(disk, claims), said, 60)
        _must(lambda: work.go_on(disk, claims), said, work.patience)
    except Lost as error:
        lost, ended = str(error), child.end() if child.code is None else child.code
    return Trial(
        work=work.name,
        fault=fault.name,
        completed=len(claims),
        ended=ended,
        lost=lost,
        said=said.read_text(errors="replace"),
    )


def _must(step: Callable[[], None], said: Path, seconds: float) -> None:
    """Done in a process of its own; whatever it raises is a loss."""
    child = done_by(step, said, seconds=seconds)
    if child.code:
        raise Lost(f"exit code {child.code}: {said.read_text()[-600:]}")


def _report(trials: list[Trial]) -> None:
    count = Counter((trial.work, trial.fault) for trial in trials)
    lost = Counter((trial.work, trial.fault) for trial in trials if trial.lost)
    works = list(dict.fromkeys(trial.work for trial in trials))
    print("\n| struck | " + " | ".join(works) + " |\n|---" + "|---" * len(works) + "|")
    for fault in FAULTS:
        cells = [f"{count[w, fault.name]}, lost {lost[w, fault.name]}" for w in works]
        print(f"| {fault.name} | " + " | ".join(cells) + " |")
    done = {w: sum(t.completed for t in trials if t.work == w) for w in works}
    print(f"\n{len(trials)} strikes, {sum(lost.values())} lost something.")
    print("Completed before the strikes: " + ", ".join(f"{w} {n}" for w, n in done.items()) + ".")


if __name__ == "__main__":
    main()
