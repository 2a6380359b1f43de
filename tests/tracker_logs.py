"""Rows of metrics as trackers and trainers keep them on disk, for tests that need a whole run.

Every function takes the folder that a run may write to and its rows, one a step, with the step
under `step`.
"""

import json
import sqlite3
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.framework_logs import write_jsonl
from tests.test_import_mlflow import SCHEMA

Rows = Sequence[Mapping[str, Any]]
BLOCK, HISTORY, ITEM, KEY, VALUE = 32768, 2, 1, 2, 16
"""LevelDB's block, and the fields of W&B's messages."""


def trainer_state(folder: Path, rows: Rows) -> None:
    """transformers: the state in the last checkpoint."""
    place = folder / f"checkpoint-{rows[-1]['step']}"
    place.mkdir(parents=True)
    (place / "trainer_state.json").write_text(json.dumps({"log_history": list(rows)}))


def verl_file(folder: Path, rows: Rows) -> None:
    """verl, `trainer.logger=["file"]`."""
    wrapped = [{"step": row["step"], "data": _without_step(row)} for row in rows]
    write_jsonl(folder / "metrics.jsonl", wrapped)


def prime_rl_monitor(folder: Path, rows: Rows) -> None:
    """prime-rl's file monitor."""
    write_jsonl(folder / "monitors" / "file" / "metrics.jsonl", rows)


def plain_jsonl(folder: Path, rows: Rows) -> None:
    """A loop that writes its own log."""
    write_jsonl(folder / "metrics.jsonl", rows)


def tensorboard(folder: Path, rows: Rows) -> None:
    """TensorBoard, by a writer that people use."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder / "tb"), flush_secs=3600) as writer:
        for row in rows:
            for name, value in _without_step(row).items():
                writer.add_scalar(name, value, row["step"])


def mlflow_database(folder: Path, rows: Rows) -> None:
    """MLflow's local store."""
    folder.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(folder / "mlflow.db") as store:
        store.executescript(SCHEMA)
        store.execute("INSERT INTO runs VALUES ('r', 'run', 0)")
        kept = [
            (name, value, row["step"], "r", row["step"], 0)
            for row in rows
            for name, value in _without_step(row).items()
        ]
        store.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", kept)
    store.close()


def wandb_offline(folder: Path, rows: Rows) -> None:
    """W&B's run file, as an offline run leaves it."""
    place = folder / "wandb" / "offline-run-20260101_000000-abc"
    place.mkdir(parents=True)
    out = bytearray(b":W&B\x00\x00\x00")
    for row in rows:
        named = {"train/global_step": row["step"], **_without_step(row)}
        items = (
            _field(KEY, name.encode()) + _field(VALUE, json.dumps(value).encode())
            for name, value in named.items()
        )
        _append(out, _field(HISTORY, b"".join(_field(ITEM, item) for item in items)))
    (place / "run-abc.wandb").write_bytes(out)


def _without_step(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "step"}


def _append(out: bytearray, record: bytes) -> None:
    """A record in as many pieces as there are blocks that it touches."""
    first = True
    while first or record:
        room = BLOCK - len(out) % BLOCK
        if room < 7:
            out += bytes(room)
            continue
        piece, record = record[: room - 7], record[room - 7 :]
        kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[
            first, not record
        ]
        check = zlib.crc32(piece, zlib.crc32(bytes([kind])))
        out += struct.pack("<IHB", check, len(piece), kind) + piece
        first = False


def _field(number: int, content: bytes) -> bytes:
    """A protobuf field that has a length."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
