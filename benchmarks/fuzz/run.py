"""Does any reader crash, hang or grow without end on bytes that nobody would write?

    python benchmarks/fuzz/run.py [--runs 1000000] [--jobs 1] [--only NAME ...] [--seconds S]

Runs every target of targets.py under atheris, which mutates inputs towards code that they have not
reached yet, and prints a table: executions, seconds, inputs kept because they reached something
new, and crashes. An input may take 10 seconds and the process 2 GiB. `--seconds` ends a target
early, and the table then says how far it came. What crashed is kept in `--keep`, beside what the
fuzzer said, and named; run it again with `python benchmarks/fuzz/run.py --again FILE --only NAME`.
Needs `pip install atheris`.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from targets import SEEDS, TARGETS, WORDS, clean_up

HERE = Path(__file__).parent
SECONDS_PER_INPUT, MEGABYTES = 10, 2048
LONGEST = {
    "dataset-jsonl": 8192,
    "log-mlflow": 32768,
    "parquet": 8192,
    "trace": 8192,
    "plan": 8192,
}
"""Bytes of an input; 2048 for the others."""
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")
_COUNT = re.compile(r"^#(\d+)\t", re.MULTILINE)


class Outcome(NamedTuple):
    """What came of one target."""

    name: str
    runs: int
    seconds: float
    kept: int
    crash: str


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000, help="executions of each target")
    parser.add_argument("--seconds", type=int, default=0, help="at most so long; 0 is no limit")
    parser.add_argument("--jobs", type=int, default=1, help="targets at once")
    parser.add_argument("--only", nargs="+", choices=[*TARGETS], default=[*TARGETS])
    parser.add_argument("--keep", type=Path, default=Path("outputs/fuzz"), help="what crashed")
    parser.add_argument("--again", type=Path, help="run this one input and nothing else")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    asked.keep.mkdir(parents=True, exist_ok=True)
    if asked.again:
        with _scratch() as place:
            return _one(asked.only[0], [str(asked.again)], place)
    print(f"{'target':16} {'executions':>11} {'seconds':>8} {'kept':>6} crashes", flush=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = [*pool.map(lambda name: _told(fuzz(name, asked)), asked.only)]
    clean_up()
    return int(any(outcome.crash for outcome in found))


def fuzz(name: str, asked: argparse.Namespace) -> Outcome:
    """One target in a process of its own: a crash of native code ends only that."""
    began = time.monotonic()
    log = asked.keep / f"{name}.log"
    with _scratch() as place:
        seeds, kept = place / "seeds", place / "kept"
        seeds.mkdir()
        kept.mkdir()
        for number, seed in enumerate(SEEDS[name]()):
            (seeds / f"seed-{number}").write_bytes(seed)
        options = [*_options(name, asked, place), str(kept), str(seeds)]
        with log.open("wb") as file:  # a run that is killed has then told how far it came
            code = _one(name, options, place, file)
        found = len([*kept.iterdir()])
    said = log.read_text(encoding="utf-8", errors="replace")
    crash = _crash(code, said) if code else ""
    return Outcome(name, _runs(said), time.monotonic() - began, found, crash)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder, in memory where the system has such a place. A fuzzer leaves its files behind."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="flatline-fuzz-", dir=memory) as place:
        yield Path(place)


def _one(name: str, options: list[str], place: Path, out: IO[bytes] | None = None) -> int:
    """Run a target with its files in a folder; its exit status."""
    command = [sys.executable, str(HERE / "one.py"), name, *options]
    alone = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TMPDIR": str(place)}
    return subprocess.run(
        command, stdout=out, stderr=out, check=False, env={**os.environ, **alone}
    ).returncode


def _options(name: str, asked: argparse.Namespace, place: Path) -> list[str]:
    """What libFuzzer is told."""
    options = [
        f"-runs={asked.runs}",
        f"-max_total_time={asked.seconds}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MEGABYTES}",
        f"-max_len={LONGEST.get(name, 2048)}",
        f"-seed={asked.seed}",
        f"-artifact_prefix={asked.keep / name}-",
        "-print_final_stats=1",
        "-reload=0",
    ]
    if name in WORDS:
        words = place / "words.txt"
        words.write_text("".join(f"{_quoted(word)}\n" for word in WORDS[name]))
        options.append(f"-dict={words}")
    return options


def _quoted(word: str) -> str:
    inside = "".join(
        f"\\x{byte:02x}" if byte < 32 or byte in b'"\\' else chr(byte) for byte in word.encode()
    )
    return f'"{inside}"'


def _runs(said: str) -> int:
    counts = [int(found) for found in _COUNT.findall(said)]
    done = _DONE.search(said)
    return int(done[1]) if done else max(counts, default=0)


def _crash(code: int, said: str) -> str:
    artifact = re.search(r"Test unit written to (\S+)", said)
    raised = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", said, re.MULTILINE)
    reason = raised[-1:] or re.findall(r"^==\d+== .*", said, re.MULTILINE)
    what = reason[0][:90] if reason else f"exit {code}: {said[-200:]!r}"
    return f"{what} ({artifact[1] if artifact else 'no input kept'})"


def _told(outcome: Outcome) -> Outcome:
    crash = outcome.crash or "0"
    print(
        f"{outcome.name:16} {outcome.runs:>11,} {outcome.seconds:>8.0f} {outcome.kept:>6} {crash}",
        flush=True,
    )
    return outcome


if __name__ == "__main__":
    sys.exit(main())
