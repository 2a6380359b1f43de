"""Does `flatline ui` hold 200 clients at once, with no error and bounded memory?

    python benchmarks/ui_load.py [--clients 200] [--seconds 300] [--idle 50]

Records a few runs, one of which goes on recording meanwhile, starts `flatline ui` in a process of
its own and lets every client do what a browser does: open a page, ask every 2 seconds for new
steps (304 where there are none), and now and then open a rollout, a list of rollouts or the list of
runs. Beside them are connections that say nothing, as an attacker would hold open; the server has
to hang up on them. Told are answers, everything that is no 200 or 304, the times by the clock, and
the memory of the server after a fifth of the time and at the end.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from report import record

from flatline.trace import Recorder

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PORT = 8396
EVERY = 2.0
"""Seconds from one question of a page to the next."""
_COMMAND = "from flatline.cli.ui import ui; import sys; from pathlib import Path;"
_COMMAND += "ui(Path(sys.argv[1]), int(sys.argv[2]))"


@dataclass(slots=True)
class Tally:
    """What was seen."""

    seconds: list[float] = field(default_factory=list)
    """Of every answer."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Of every answer; what went wrong otherwise, by its name."""
    hung_up: int = 0
    """Connections that said nothing and were closed by the server."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--idle", type=int, default=50, help="connections that say nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = Path(spare)
        for number in range(4):
            record(folder / f"run-{number}", steps=30, rollouts=10, tokens=30)
        server = subprocess.Popen([sys.executable, "-c", _COMMAND, str(folder), str(PORT)])
        try:
            _wait()
            return _measure(asked, folder, psutil.Process(server.pid))
        finally:
            server.terminate()
            server.wait()


def _measure(asked: argparse.Namespace, folder: Path, server: psutil.Process) -> int:
    tally, memory, over = Tally(), [], threading.Event()
    writer = threading.Thread(target=_record, args=(folder / "live", over), daemon=True)
    writer.start()
    asyncio.run(_everybody(asked, tally, memory, server))
    over.set()
    writer.join()
    return _tell(asked, tally, memory, server)


def _record(folder: Path, over: threading.Event) -> None:
    """A run that goes on while it is looked at."""
    with Recorder(folder, settings={}, seed=0) as recorder:
        step = 0
        while not over.wait(EVERY):
            step += 1
            recorder.log_step(step=step, reward=0.5)


async def _everybody(
    asked: argparse.Namespace, tally: Tally, memory: list[int], server: psutil.Process
) -> None:
    end = time.monotonic() + asked.seconds
    clients = [_client(number, end, tally) for number in range(asked.clients)]
    idle = [_silent(end, tally) for _ in range(asked.idle)]
    await asyncio.gather(_watch(end, memory, server), *clients, *idle)


async def _watch(end: float, memory: list[int], server: psutil.Process) -> None:
    while time.monotonic() < end:
        memory.append(server.memory_info().rss)
        await asyncio.sleep(1)


async def _client(number: int, end: float, tally: Tally) -> None:
    """One browser: everything over one connection, as long as it is kept."""
    die = random.Random(number)
    await asyncio.sleep(die.uniform(0, 2 * EVERY))  # nobody opens 200 pages in one moment
    line: Line | None = None
    tags: dict[str, str] = {}
    while time.monotonic() < end:
        address = _next_address(die)
        began = time.perf_counter()
        try:
            line = line or await asyncio.open_connection("127.0.0.1", PORT)
            status, tag = await asyncio.wait_for(_ask(line, address, tags.get(address)), 60)
            tally.seconds.append(time.perf_counter() - began)
            tally.statuses[status] += 1
            tags[address] = tag
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            tally.statuses[type(error).__name__] += 1
            if line is not None:
                line[1].close()
            line = None
        await asyncio.sleep(EVERY)
    if line is not None:
        line[1].close()


def _next_address(die: random.Random) -> str:
    run = die.choice(["live", "run-0", "run-1", "run-2", "run-3"])
    if die.random() < 0.85:
        return f"/api/run/{run}/steps?after=0"
    pages = [f"/rollout/{run}?step=1&rollout=0", f"/rollouts/{run}", f"/run/{run}", "/"]
    return die.choice(pages) if run != "live" else "/"


async def _ask(line: Line, address: str, tag: str | None) -> tuple[str, str]:
    reader, writer = line
    known = f"If-None-Match: {tag}\r\n" if tag else ""
    writer.write(f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\n{known}\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    fields = dict(row.split(": ", 1) for row in head.split("\r\n")[1:] if ": " in row)
    await reader.readexactly(int(fields.get("content-length", 0)))
    return head.split()[1], fields.get("etag", "")


async def _silent(end: float, tally: Tally) -> None:
    """Says nothing until the server hangs up, and comes again."""
    while time.monotonic() < end:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        try:
            await asyncio.wait_for(reader.read(), max(end - time.monotonic(), 0.1))
            tally.hung_up += 1
        except (TimeoutError, OSError):
            pass
        writer.close()


def _tell(
    asked: argparse.Namespace, tally: Tally, memory: list[int], server: psutil.Process
) -> int:
    clock = 1000 * np.array(tally.seconds)
    good = sum(tally.statuses[name] for name in ("200", "304"))
    other = {name: n for name, n in tally.statuses.items() if name not in ("200", "304")}
    used = sum(server.cpu_times()[:2])
    early, late = memory[len(memory) // 5], memory[-1]
    print(f"clients                {asked.clients} for {asked.seconds:.0f} s, {asked.idle} silent")
    print(f"answers                {good:,} ({good / asked.seconds:.0f} a second)")
    print(f"anything else          {other or 'none'}")
    middle, most = np.quantile(clock, [0.5, 0.99])
    print(
        f"time of an answer      median {middle:.0f} ms, 99 % {most:.0f} ms, "
        f"largest {clock.max():.0f} ms"
    )
    print(f"silent ones hung up on {tally.hung_up}")
    print(
        f"memory                 {early / 2**20:.0f} MiB after a fifth, {late / 2**20:.0f} MiB at "
        f"the end, largest {max(memory) / 2**20:.0f} MiB"
    )
    load = psutil.getloadavg()[0]
    print(f"processor              {used:.0f} s of the server; load of the machine {load:.1f}")
    return int(bool(other))


def _wait() -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/favicon.ico"):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("flatline ui did not start")


if __name__ == "__main__":
    sys.exit(main())
