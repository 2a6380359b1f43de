"""Tests run side by side, one to a core: more threads than cores make torch crawl."""

import gc
import os
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell. Children would inherit that, and tests interrupt some.
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # what is imported stays
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")  # imports trio, which selenium brings


def pytest_collection_finish():
    """Every training of accelerate ends with a full collection of garbage: half of its time, with
    all that was imported to be looked through. That is set aside."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # else duckdb, at the end, lists all of itself that is still there
