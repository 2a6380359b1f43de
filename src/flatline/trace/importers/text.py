"""Text files, line by line, with the guards that other people's files need."""

import io
import json
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from flatline.errors import TraceError
from flatline.files import bytes_in, open_plain, refuse_outside
from flatline.text import encodable
from flatline.trace.importers.log import SHOWN_TEXT, Entry, Log, quoted

MAX_LINE = 64 * 2**20
"""Bytes. A longer line is no row of a log, and reading it could fill the memory."""
MAX_DOCUMENT = 512 * 2**20
"""Bytes of a JSON file, which has to be in memory as a whole."""
_SURROGATES = r"\ud", r"\uD"
"""In every text whose value may have half of a surrogate pair."""
ZSTD = ".zst"
"""How a compressed file ends; prime-rl seals its streams so."""
ANYWHERE = Path("/")
"""A file that was named may be a link; those that are found in a folder go through `inside`."""
MOST_PACKED, ALWAYS_FINE = 100, 2**20
"""Bytes that one packed byte may stand for, and bytes that are never too many: rows pack 5 to 20
times, and a few kilobytes of nothing could fill the memory."""


def lines(path: Path, *, returns: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; a byte order mark is dropped.

    Where `returns`, a carriage return ends a line as well. Elsewhere it does so in files that have
    no other line ends, as a classic Mac writes them: a console draws progress bars with it.
    """
    for number, raw in _raw_lines(path, returns=returns):
        try:
            yield number, _decoded(number, raw.rstrip(b"\r\n"))
        except ValueError as error:
            raise TraceError(
                f"{path}, line {number}: {error}.\n"
                "Unpack it if it is compressed, or save it as UTF-8. Of binary files, W&B `.wandb` "
                "and TensorBoard `events.out.tfevents.*` can be read."
            ) from error


def head(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file."""
    try:
        with opened(path) as file:
            return file.read(size)
    except OSError as error:
        raise unreadable(path, error) from error


def opened(path: Path) -> IO[bytes]:
    """A log; raises `OSError` for a pipe or a device."""
    return open_plain(path, within=ANYWHERE)


def inside(folder: Path, found: Iterable[Path]) -> list[Path]:
    """Files that were found in a folder; `TraceError` where one of them leads out of it."""
    there = list(found)
    for path in there:
        try:
            refuse_outside(path, folder)
        except OSError as error:
            raise TraceError(
                f"{path} is not read: {error}.\nOr give that file itself instead of the folder."
            ) from error
    return there


def document(path: Path) -> str:
    """A whole file as text."""
    size = path.stat().st_size
    if size > MAX_DOCUMENT:
        raise TraceError(
            f"{path} has {size / 2**20:.0f} MiB; a JSON file has to fit in memory as a whole, and "
            f"the limit is {MAX_DOCUMENT // 2**20} MiB.\n"
            "Write it as JSONL, one object a line: `jq -c '.[]' FILE > FILE.jsonl`."
        )
    whole = _at_once(path) if size <= MAX_LINE and path.suffix != ZSTD else None
    return "\n".join(line for _, line in lines(path)) if whole is None else whole


def parsed(text: str) -> Any:
    """JSON, with the NaN and Infinity that Python's own writer leaves; ValueError otherwise."""
    try:
        found = json.loads(text)
        return encodable(found) if any(one in text for one in _SURROGATES) else found
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_jsonl(path: Path, *, source: str) -> Log:
    """One object a line. A line that is none is counted and left out; a last one without its end
    is still being written."""
    log = Log(source=source, path=path)
    for number, raw in _raw_lines(path, returns=True):
        place = f"line {number}"
        try:
            line = _decoded(number, raw).strip()
            if not line:
                continue
            value = parsed(line)
        except ValueError as error:
            if log.entries and not raw.endswith((b"\n", b"\r")):
                log.notes.append(f"The file ends in the middle of a row, on {place}.")
                continue
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            log.bad.append(f"{place}: not JSON ({reason}): {quoted(raw.rstrip()[:SHOWN_TEXT])}")
            continue
        if isinstance(value, dict):
            log.entries.append(Entry(place, value))
        else:
            log.bad.append(f"{place}: not an object: {quoted(value)}")
    return log


def unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(
        f"{path} cannot be read: {error.strerror or error}.\nCheck the path and its rights."
    )


def _at_once(path: Path) -> str | None:
    """The text of a file without a loop over its lines; None where one of them is not sound."""
    try:
        text = bytes_in(path, within=ANYWHERE).decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    return None if "\0" in text else text


def _raw_lines(path: Path, *, returns: bool) -> Iterator[tuple[int, bytes]]:
    try:
        with _unpacked(path) as file:
            total = 0
            most = _most(path)
            for number, raw in enumerate(_split(file, returns=returns), 1):
                if len(raw) > MAX_LINE:
                    raise _too_long(path, number)
                total += len(raw)
                if total > most:
                    raise _bomb(path, number)
                yield number, raw
    except OSError as error:
        raise unreadable(path, error) from error


def _split(file: IO[bytes], *, returns: bool) -> Iterator[bytes]:
    """Lines with their ends. One that is too long is cut off where that is certain."""
    rest = b""
    first = file.readline(MAX_LINE + 1)
    returns = returns or not first.endswith(b"\n")
    for raw in chain([first], iter(lambda: file.readline(MAX_LINE + 1), b"")):
        if not returns:
            yield raw
            continue
        *whole, rest = (rest + raw).splitlines(keepends=True) or [b""]
        yield from whole
        if rest.endswith(b"\n") or len(rest) > MAX_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def _most(path: Path) -> float:
    """Bytes that a file may unpack to; of one that is not packed, all."""
    packed = path.suffix == ZSTD
    return ALWAYS_FINE + MOST_PACKED * path.stat().st_size if packed else math.inf


def _unpacked(path: Path) -> IO[bytes]:
    """The bytes of a file; those of a `.zst` file are unpacked while they are read."""
    file = opened(path)
    if path.suffix != ZSTD:
        return file
    return io.BufferedReader(cast(io.RawIOBase, pa.input_stream(file, compression="zstd")))


def _decoded(number: int, raw: bytes) -> str:
    """The text of a line; ValueError where it is none."""
    if b"\0" in raw:
        raise ValueError("a zero byte, so this is no UTF-8 text")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        seen = quoted(raw[error.start : error.start + 8])
        raise ValueError(f"not UTF-8 text at byte {error.start}: {seen}") from error


def _bomb(path: Path, number: int) -> TraceError:
    return TraceError(
        f"{path} unpacks to more than {MOST_PACKED} times its size by line {number}, which no log "
        "does.\nUnpack it yourself if you know where it is from: `zstd -d FILE`."
    )


def _too_long(path: Path, number: int) -> TraceError:
    return TraceError(
        f"{path}, line {number} is longer than {MAX_LINE // 2**20} MiB, which no row of a log is.\n"
        "Check that this is the metrics file and not a dump of tensors or a JSON file on one line."
    )
