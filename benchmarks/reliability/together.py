"""Several processes in one place at once: nothing is lost, and nothing is mixed up.

python benchmarks/reliability/together.py [--rounds 10]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parent.parent.parent))

from processes import Child, Lost, done_by, forked
from works import Journal, check_hand
from works_runs import Investigate

from flatline.errors import TraceError
from flatline.journal.check import check as look
from flatline.journal.folder import Journal as Opened
from flatline.trace import Trace
from flatline.trace.writer import Writer

WRITERS, EACH = 16, 3
STEPS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    failed = 0
    for name, (times, one) in {
        "two trainings into one folder": (given.rounds, two_trainings),
        "readers while a run is compacted": (given.rounds, readers_and_compaction),
        f"{WRITERS} writers on one journal": (max(1, given.rounds // 5), writers_on_a_journal),
        "two investigations on one journal": (max(1, given.rounds // 5), two_investigations),
    }.items():
        told = []
        for _ in range(times):
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    told.append(one(Path(scratch)))
                except Lost as error:
                    failed += 1
                    told.append(f"LOST: {error}")
        print(f"| {name} | {times} | {'; '.join(dict.fromkeys(told))} |", flush=True)
    sys.exit(bool(failed))


def two_trainings(folder: Path) -> str:
    """They begin at the same moment; one of them is refused, and the other is whole."""

    def train(number: int) -> None:
        try:
            writer = Writer(folder / "run", run={"number": number})
        except TraceError as error:
            print(str(error).splitlines()[0], file=sys.stderr)
            raise SystemExit(2) from None
        for step in range(1, STEPS + 1):
            writer.write("rollouts", [{"step": step, "rollout": 0, "reward": float(number)}])
            writer.write("steps", [{"step": step, "reward": float(number)}])
            writer.end_step()
            time.sleep(0.005)  # long enough for the other to come in between

    codes = _all([lambda n=n: train(n) for n in (1, 2)], folder / "said")
    steps, rewards = _read(folder)
    if steps != list(range(1, STEPS + 1)) or len(set(rewards)) != 1:
        raise Lost(f"{len(steps)} steps with rewards {set(rewards)}")
    if sorted(codes) == [0, 2]:
        return "one is refused, the other is whole"
    if codes != [0, 0]:
        raise Lost(f"exit codes {codes}")
    return "one after the other: the later one is read"


def _read(folder: Path) -> tuple[list[int], list[float]]:
    def work() -> None:
        trace = Trace.open(folder / "run")
        if trace.warnings:
            raise Lost(str(trace.warnings))
        steps = trace.steps["step"].astype(int).tolist()
        print(json.dumps([steps, trace.rollouts["reward"].tolist()]))

    child = done_by(work, folder / "said", seconds=60)
    if child.code:
        raise Lost((folder / "said").read_text()[-500:])
    steps, rewards = json.loads(child.lines[-1])
    return steps, rewards


def readers_and_compaction(folder: Path) -> str:
    """Four readers open and read without a pause while a run ends and its files change."""

    def write() -> None:
        writer = Writer(folder / "run")
        for step in range(1, STEPS + 1):
            writer.write("rollouts", [{"step": step, "rollout": 0, "reward": 1.0}])
            writer.write("tokens", [{"step": step, "rollout": 0, "ids": [1, 2, 3]}])
            writer.write("steps", [{"step": step, "reward": 1.0}])
            writer.end_step()
        print("written")
        sys.stdin.readline()
        writer.close()

    read_end, write_end = os.pipe()

    def held() -> None:
        sys.stdin = os.fdopen(read_end)
        write()

    writer = forked(held, folder / "said")
    if not writer.until(60):
        raise Lost("nothing was written")

    def read() -> None:
        print("reading")
        for _ in range(25):
            trace = Trace.open(folder / "run")
            tokens = len(trace.tokens(steps=[1, STEPS]))
            if len(trace.steps) != STEPS or tokens != 6 or trace.warnings:
                raise Lost(f"{len(trace.steps)} steps, {tokens} tokens, {trace.warnings}")

    readers = [forked(read, folder / "said") for _ in range(4)]
    for reader in readers:
        reader.until(60)
    os.write(write_end, b"\n")
    _ended([writer, *readers], folder / "said")
    os.close(write_end)
    os.close(read_end)
    if not list((folder / "run").glob("*.parquet")) or list((folder / "run").glob("*.arrow")):
        raise Lost("it was not compacted")
    return "100 readings, each whole"


def writers_on_a_journal(folder: Path) -> str:
    """Every one of them records results of its own; a person's lines stand in every file."""
    work = Journal()
    done_by(lambda: work.prepare(folder), folder / "said", seconds=60)

    def write(number: int) -> None:
        for i in range(EACH):
            work.record(folder, f"w{number}-{i}")

    codes = _all([lambda n=n: write(n) for n in range(WRITERS)], folder / "said", seconds=300)
    if any(codes):
        raise Lost(f"exit codes {codes}: {(folder / 'said').read_text()[-500:]}")

    def check() -> None:
        names = [f"w{n}-{i}" for n in range(WRITERS) for i in range(EACH)]
        work.check(folder, names)
        log = (folder / "journal" / "01-experiments-log.md").read_text()
        marks = [log.count(f"<!-- flatline:{name}-") for name in names]
        if set(marks) != {1}:
            raise Lost(f"entries of the log: {marks}")
        problems = look(Opened.open(folder / "journal"))
        if problems:
            raise Lost(str(problems[:2]))

    child = done_by(check, folder / "said", seconds=60)
    if child.code:
        raise Lost((folder / "said").read_text()[-500:])
    return f"{WRITERS * EACH} results, each once in every file"


def two_investigations(folder: Path) -> str:
    """The same experiment twice at once: every run is made once, and both say the same."""
    work = Investigate()
    made = done_by(lambda: work.rehearse(folder), folder / "said", seconds=120)
    work.verdict, work.traces = json.loads(made.lines[0]), folder / "traces"
    (folder / "both").mkdir()
    done_by(lambda: work.prepare(folder / "both"), folder / "said", seconds=60)

    def investigate() -> None:
        work.investigate(folder / "both")

    codes = _all([investigate, investigate], folder / "said", seconds=200)
    starts = work.starts(folder / "both")
    if any(codes) or len(starts) != 6 or len(set(starts)) != 6:
        raise Lost(
            f"exit codes {codes}, {len(starts)} starts: {(folder / 'said').read_text()[-500:]}"
        )
    check_hand(folder / "both")
    results = list((folder / "both" / "journal" / "experimental-results").glob("*.json"))
    if json.loads(results[0].read_text())["verdict"] != work.verdict:
        raise Lost("another verdict")
    return "6 runs, each made once; one verdict"


def _all(works: list[Callable[[], None]], said: Path, *, seconds: float = 120) -> list[int]:
    return _ended([forked(work, said) for work in works], said, seconds=seconds, strict=False)


def _ended(
    children: list[Child], said: Path, *, seconds: float = 120, strict: bool = True
) -> list[int]:
    for child in children:
        child.hear(seconds)
    codes = [child.end() for child in children]
    if strict and any(codes):
        raise Lost(f"exit codes {codes}: {said.read_text()[-500:]}")
    return codes


if __name__ == "__main__":
    main()
