"""What a process does when it is asked to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """A SIGTERM ends the work as a Ctrl-C does: what was done is kept, nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
