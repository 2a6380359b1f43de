"""Processes that begin with torch and TRL imported: forked from a server that imports them once.

A test that kills a process, or needs two of them, is about processes and not about the seconds of
imports in each.
"""

import gc
import multiprocessing
import os
import sys
from pathlib import Path
from socket import socket

SOON = 240
"""Seconds after which somebody waits for a process that does not come."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["flatline.training.run", "flatline.live.trl.recorder.attach"])


def run(code, *arguments, folder, **environment):
    """Exit code of a process with this program, below 0 where a signal ended it, and its words."""
    started = _start(code, arguments, Path(folder) / "words.txt", environment)
    return _ended(started)


def run_two(code, *arguments, folder, **environment):
    """The same for two processes that train together: the worst exit code, and all words."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    started = []
    for rank in map(str, range(2)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        words = Path(folder) / f"words_{rank}.txt"
        started.append(_start(code, arguments, words, environment | meeting | place))
    ended = [_ended(one) for one in started]
    return max(abs(code) for code, _ in ended), "\n".join(words for _, words in ended)


def _free_port():
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _start(code, arguments, words, environment):
    process = _SERVER.Process(target=_play, args=(code, arguments, str(words), environment))
    process.start()
    return process, words


def _ended(started):
    process, words = started
    process.join(SOON)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode, words.read_text(encoding="utf-8", errors="replace")


def _play(code, arguments, words, environment):
    gc.freeze()  # else the first collection looks through all imports, and copies their pages
    os.environ.update(environment)
    file = os.open(words, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
