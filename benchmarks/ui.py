"""How long do the live pages take?

    python benchmarks/ui.py [--runs 200] [--rollouts 250000] [--keep DIR]

Records a folder of small runs and one large run of made-up numbers, starts `flatline ui` in a fresh
process and asks for pages as a browser does. The goals: the first page of 200 runs in under
1 second, the token view of any rollout in under 300 ms. The first question to a run opens it, so
it is told apart from the later ones, which are for rollouts chosen by a fixed die. CPU time of the
server is told as well, because a shared machine makes the clock run longer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from report import record

Ask = Callable[[str], tuple[float, float]]

PORT = 8397
STEPS_OF_SMALL, ROLLOUTS_OF_SMALL = 30, 8
PER_STEP = 125
ASKED = 40
"""Rollouts of the large run that are looked at."""
_COMMAND = "from flatline.cli.ui import ui; import sys; from pathlib import Path;"
_COMMAND += "ui(Path(sys.argv[1]), int(sys.argv[2]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rollouts", type=int, default=250_000, help="of the large run")
    parser.add_argument("--keep", type=Path, help="make the runs here, or use those there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = asked.keep or Path(spare)
        _make(folder, asked.runs, asked.rollouts)
        _measure(folder / "small", _index)
        _measure(folder / "large", lambda ask: _large(ask, asked.rollouts // PER_STEP))


def _make(folder: Path, runs: int, rollouts: int) -> None:
    for number in range(runs):
        path = folder / "small" / f"run-{number:03}"
        if not path.exists():
            record(path, STEPS_OF_SMALL, ROLLOUTS_OF_SMALL, 20)
    if not (folder / "large").exists():
        record(folder / "large" / "run", rollouts // PER_STEP, PER_STEP, 40)


def _measure(folder: Path, questions: Callable[[Ask], None]) -> None:
    server = subprocess.Popen([sys.executable, "-c", _COMMAND, str(folder), str(PORT)])
    try:
        _wait()
        questions(lambda address: _ask(address, server.pid))
    finally:
        server.terminate()
        server.wait()


def _index(ask: Ask) -> None:
    _say("list of runs, first time", [ask("/")])
    _say("list of runs, again", [ask("/") for _ in range(10)])


def _large(ask: Ask, steps: int) -> None:
    rng = np.random.default_rng(0)
    places = zip(rng.integers(1, steps + 1, ASKED), rng.integers(0, PER_STEP, ASKED), strict=True)
    views = [f"/rollout/run?step={step}&rollout={rollout}" for step, rollout in places]
    _say("token view, the first of a run", [ask(views[0])])
    _say("token view, any rollout", [ask(view) for view in views[1:]])
    _say(
        "steps after N, nothing new", [ask(f"/api/run/run/steps?after={steps}") for _ in range(10)]
    )
    _say("rollouts, first time", [ask("/rollouts/run")])
    middle = steps // 2
    _say(
        "rollouts, filtered",
        [ask(f"/rollouts/run?from={middle}&most=0.5&page={n}") for n in (1, 9)],
    )
    _say("rollouts, longest first", [ask("/rollouts/run?order=length") for _ in range(3)])
    _say("page of the run, being made", [ask("/run/run")])
    began = time.perf_counter()
    while b"What was recorded" not in _read("/run/run"):
        time.sleep(0.5)
    print(f"{'page of the run, there after':34} {time.perf_counter() - began:6.1f} s")


def _ask(address: str, server: int) -> tuple[float, float]:
    """Seconds by the clock, and of the server's processor."""
    began, used = time.perf_counter(), _processor(server)
    _read(address)
    return time.perf_counter() - began, _processor(server) - used


def _read(address: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{address}") as answer:
        return bytes(answer.read())


def _processor(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def _wait() -> None:
    for _ in range(600):
        try:
            _ask("/favicon.ico", os.getpid())
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("flatline ui did not start")


def _say(what: str, asked: list[tuple[float, float]]) -> None:
    clock, processor = (1000 * np.array(values) for values in zip(*asked, strict=True))
    largest = f", largest {clock.max():.0f} ms of {len(asked)}" if len(asked) > 1 else ""
    print(
        f"{what:34} {np.median(clock):6.0f} ms (CPU {np.median(processor):.0f} ms){largest}",
        flush=True,
    )


if __name__ == "__main__":
    main()
