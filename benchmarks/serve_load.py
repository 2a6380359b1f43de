"""Many clients at once on `flatline serve`: errors, speed and memory.

    .venv/bin/python benchmarks/serve_load.py --clients 200 --seconds 300

Starts the server on a free port of loopback with the lab policy. Every client asks for the next
turn of a MuSiQue conversation, waits for it and asks again. Prints one table.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import numpy as np
import psutil

from flatline.tasks.musique import Musique

TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    port = _free_port()
    command = [Path(sys.executable).parent / "flatline", "serve", "--port", str(port)]
    with subprocess.Popen([*command, "--max-waiting", "512"]) as server:
        try:
            asyncio.run(load(f"http://127.0.0.1:{port}/", server.pid, options))
        finally:
            server.terminate()


async def load(address: str, pid: int, options: argparse.Namespace) -> None:
    bodies = _bodies()
    limits = httpx2.Limits(max_connections=None)
    memory: list[float] = []
    async with httpx2.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        await _ready(client)
        until = time.monotonic() + options.seconds
        watching = asyncio.create_task(_watch(pid, memory))
        found = await asyncio.gather(
            *(_ask(client, bodies, i, until) for i in range(options.clients))
        )
        watching.cancel()
    _print(options, [row for rows in found for row in rows], memory)


async def _ask(
    client: httpx2.AsyncClient, bodies: list[dict], i: int, until: float
) -> list[tuple[str, float, int]]:
    """What came back, how long it took and how many tokens it has, request by request."""
    rows = []
    while time.monotonic() < until:
        start = time.monotonic()
        try:
            answer = await client.post("v1/chat/completions", json=bodies[i % len(bodies)])
            tokens = answer.json()["usage"]["completion_tokens"] if answer.is_success else 0
            rows.append((str(answer.status_code), time.monotonic() - start, tokens))
        except httpx2.HTTPError as error:
            rows.append((type(error).__name__, time.monotonic() - start, 0))
        i += 1
    return rows


async def _ready(client: httpx2.AsyncClient) -> None:
    for _ in range(600):
        try:
            (await client.get("health")).raise_for_status()
            return
        except httpx2.HTTPError:
            await asyncio.sleep(0.1)
    raise SystemExit("The server did not answer within a minute.")


async def _watch(pid: int, memory: list[float]) -> None:
    process = psutil.Process(pid)
    while True:
        memory.append(process.memory_info().rss / 2**20)
        await asyncio.sleep(1)


def _bodies() -> list[dict]:
    task = Musique()
    tools = [tool.schema() for tool in task.tools]
    return [
        {"messages": task.messages(problem), "tools": tools, "max_tokens": TOKENS}
        for problem in task.load("lab", split="validation")[:64]
    ]


def _print(
    options: argparse.Namespace, rows: list[tuple[str, float, int]], memory: list[float]
) -> None:
    good = [row for row in rows if row[0] == "200"]
    taken = [row[1] for row in good]
    middle, slow = np.percentile(taken, [50, 99]) if taken else (float("nan"), float("nan"))
    tokens = sum(row[2] for row in good)
    kept = np.array(memory[len(memory) // 2 :])
    print("| clients | seconds | answered | errors | requests/s | tokens/s | p50 s | p99 s |")
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {options.clients} | {options.seconds:g} | {len(good)} | {len(rows) - len(good)} "
        f"| {len(good) / options.seconds:.1f} | {tokens / options.seconds:.0f} "
        f"| {middle:.2f} | {slow:.2f} |"
    )
    print(f"errors by kind: { {row[0] for row in rows if row[0] != '200'} or 'none' }")
    print(f"server memory: {memory[0]:.0f} MiB at first, {max(memory):.0f} at most; ", end="")
    print(f"second half {kept.min():.0f} to {kept.max():.0f}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
