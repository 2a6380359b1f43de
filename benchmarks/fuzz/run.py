"""Does any reader crash, hang or grow without end on bytes that nobody would write?

    python benchmarks/fuzz/run.py [--runs 1000000] [--jobs 1] [--only NAME ...] [--seconds S]

Runs every target of targets.py under atheris, which mutates inputs towards code that they have not
reached yet, and prints a table: executions, seconds, inputs kept because they reached something
new, and crashes. An input may take 10 seconds and the process 2 GiB. `--seconds` ends a target
early, and the table then says how far it came. What crashed is kept in `--keep` and named; run it
again with `python benchmarks/fuzz/run.py --again FILE --only NAME`. Needs `pip install atheris`.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from targets import SEEDS, TARGETS, WORDS

HERE = Path(__file__).parent
SECONDS_PER_INPUT, MEGABYTES = 10, 2048
LONGEST = {
    "dataset-jsonl": 16384,
    "log-mlflow": 32768,
    "parquet": 16384,
    "trace": 16384,
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
        command = [sys.executable, str(HERE / "one.py"), asked.only[0], str(asked.again)]
        return subprocess.run(command, check=False).returncode
    print(f"{'target':16} {'executions':>11} {'seconds':>8} {'kept':>6} crashes", flush=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = [*pool.map(lambda name: _told(fuzz(name, asked)), asked.only)]
    return int(any(outcome.crash for outcome in found))


def fuzz(name: str, asked: argparse.Namespace) -> Outcome:
    """One target in a process of its own: a crash of native code ends only that."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS[name]()):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        words = Path(corpus) / "words.txt"
        options = [
            f"-runs={asked.runs}",
            f"-max_total_time={asked.seconds}",
            f"-timeout={SECONDS_PER_INPUT}",
            f"-rss_limit_mb={MEGABYTES}",
            f"-max_len={LONGEST.get(name, 2048)}",
            f"-seed={asked.seed}",
            f"-artifact_prefix={asked.keep / name}-",
            "-print_final_stats=1",
        ]
        if name in WORDS:
            words.write_text("".join(f"{_quoted(word)}\n" for word in WORDS[name]))
            options.append(f"-dict={words}")
        kept = Path(corpus) / "kept"
        kept.mkdir()
        command = [sys.executable, str(HERE / "one.py"), name, *options, str(kept), corpus]
        done = subprocess.run(command, capture_output=True, check=False, env=_environment())
        said = (done.stderr + done.stdout).decode("utf-8", "replace")
        return Outcome(
            name, _runs(said), time.monotonic() - began, len([*kept.iterdir()]), _crash(done, said)
        )


def _quoted(word: str) -> str:
    inside = "".join(
        f"\\x{byte:02x}" if byte < 32 or byte in b'"\\' else chr(byte) for byte in word.encode()
    )
    return f'"{inside}"'


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def _runs(said: str) -> int:
    counts = [int(found) for found in _COUNT.findall(said)]
    done = _DONE.search(said)
    return int(done[1]) if done else max(counts, default=0)


def _crash(done: "subprocess.CompletedProcess[bytes]", said: str) -> str:
    if done.returncode == 0:
        return ""
    artifact = re.search(r"Test unit written to (\S+)", said)
    raised = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", said, re.MULTILINE)
    reason = raised[-1:] or re.findall(r"^==\d+== .*", said, re.MULTILINE)
    what = reason[0][:90] if reason else f"exit {done.returncode}: {said[-200:]!r}"
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
