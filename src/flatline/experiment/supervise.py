"""Runs one command, and sees to it that the command does not outlive whoever asked for it.

A script that needs nothing but Python: `supervise.py GRACE ENDED COMMAND...`. Whoever starts it
holds the other end of its standard input. When that end is closed, on purpose or because its
process was killed, the command and all that it started are ended: asked first, killed after GRACE
seconds.
Otherwise a killed experiment would leave trainings behind that write into the folders of its
successor.

A command that ends well is said in the file ENDED, with its seconds: should whoever asked be killed
at this very moment, the run has not been in vain.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

NOT_STARTED = 127


def main(grace: float, ended: str, command: list[str]) -> int:
    start = time.monotonic()
    try:
        # A group of its own, so that all of it can be ended, and a Ctrl-C is not for it.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"flatline: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return NOT_STARTED
    asked = threading.Event()
    threading.Thread(target=_end_when_asked, args=(child.pid, grace, asked), daemon=True).start()
    code = child.wait()
    if code == 0 and not asked.is_set():  # what was asked to end may end well, and too early
        _say_ended(ended, time.monotonic() - start)
    if asked.is_set():
        _signal(child.pid, signal.SIGKILL)  # what the command had started and left behind
    return code if code >= 0 else 128 - code


def _say_ended(path: str, seconds: float) -> None:
    """Whole or not at all; where there is no room for it, the run is only made again."""
    with suppress(OSError):
        with open(f"{path}.half", "w", encoding="ascii") as file:
            json.dump({"seconds": seconds}, file)
        os.replace(f"{path}.half", path)


def _end_when_asked(group: int, grace: float, asked: threading.Event) -> None:
    while os.read(0, 1024):  # not `sys.stdin`, whose lock would break the exit of the main thread
        pass
    asked.set()
    _signal(group, signal.SIGTERM)
    time.sleep(grace)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
