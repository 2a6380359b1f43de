"""Records the blind scripts and loops of all rounds, and packs recordings for the golden corpus.

    python benchmarks/golden_recordings.py record --out DIR [--jobs 2] [ROUND ...]
    python benchmarks/golden_recordings.py pack DIR tests/golden/recordings/scripts
    python benchmarks/golden_recordings.py pack runs/museum tests/golden/recordings/museum

Each script is a process of its own with seed 0 and one thread; one that is there is not recorded
again. A pack holds one recording: its columns as they are, floats split into their bytes, which
compress better so.
"""

import argparse
import importlib
import os
import shutil
import signal
import tarfile
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import strangers
import torch
from transformers.utils import logging

LIMIT = 900
"""Seconds for one script."""
FLOATS = ("FLOAT", "DOUBLE")


def record(script: Any, folder: Path) -> None:
    """The recording of one script, made as its author would."""
    half = folder.with_name(folder.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    os.chdir(half)
    torch.manual_seed(0)
    try:
        strangers.recorded(script(), str(half / "run"))
    except Exception:  # a training that stops was recorded up to there
        (half / "stopped.txt").write_text(traceback.format_exc())
    half.rename(folder)


def in_child(script: Any, folder: Path) -> int:
    """The process that records it; what it prints goes to a file beside."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        record(script, folder)
        code = 0
    finally:
        os._exit(code)


def record_all(rounds: list[str], out: Path, jobs: int) -> None:
    """Those of the rounds that are not there yet, some at a time."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    importlib.import_module("trl.trainer.grpo_trainer")  # shared by the children
    out.mkdir(parents=True, exist_ok=True)
    waiting = [
        (script, out.resolve() / f"{part}.{name}")
        for part in rounds
        for name, script in strangers.round_called(part).scripts.items()
        if not (out / f"{part}.{name}").exists()
    ]
    running: dict[int, tuple[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            script, folder = waiting.pop(0)
            running[in_child(script, folder)] = (folder.name, time.monotonic())
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            name, begun = running.pop(pid)
            print(f"{name}: {status} {time.monotonic() - begun:.0f} s", flush=True)
        for late in [
            pid for pid, (_, begun) in running.items() if time.monotonic() > begun + LIMIT
        ]:
            os.kill(late, signal.SIGKILL)
        time.sleep(0.2)


def pack_all(folder: Path, out: Path) -> None:
    """A pack of every recording below a folder, named after the folders that lead to it."""
    out.mkdir(parents=True, exist_ok=True)
    for settings in sorted(folder.rglob("run.json")):
        run = settings.parent
        parts = [part for part in run.relative_to(folder).parts if part != "run"]
        pack(run, out / f"{'.'.join(parts)}.tar.xz")


def pack(run: Path, to: Path) -> None:
    """One recording in one file, the same bytes whenever it is packed."""
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(to, "w:xz", preset=9) as packed:
        for file in sorted(run.iterdir()):
            if file.suffix not in (".parquet", ".json") or file.name == "diagnosis.json":
                continue
            copy = Path(scratch) / file.name
            recompressible(file, copy) if file.suffix == ".parquet" else shutil.copy(file, copy)
            packed.add(copy, f"run/{file.name}", filter=without_owner)


def recompressible(file: Path, copy: Path) -> None:
    """The same table, laid out so that a compressor finds what repeats."""
    table, leaves = parquet.read_table(file), parquet.ParquetFile(file).schema
    floats = [
        one.path for one in map(leaves.column, range(len(leaves))) if one.physical_type in FLOATS
    ]
    rest = [one.path for one in map(leaves.column, range(len(leaves))) if one.path not in floats]
    parquet.write_table(
        table,
        copy,
        compression="none",
        use_dictionary=rest,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
    )


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """What says when and by whom it was packed is left out."""
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
    return entry


def main() -> None:
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = ask.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("rounds", nargs="*", default=[*strangers.MODULES, *strangers.IN_FILES])
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--jobs", type=int, default=2)
    packing = verbs.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("out", type=Path)
    given = ask.parse_args()
    if given.verb == "record":
        record_all(given.rounds, given.out, given.jobs)
    else:
        pack_all(given.folder, given.out)


if __name__ == "__main__":
    main()
