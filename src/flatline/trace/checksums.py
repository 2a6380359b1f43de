"""The `.crc` file beside a table: which bytes of it were written, and their checksums.

    START END CRC32 CHECK

is a line for the bytes from START to END: one message of a stream, one column of a row group, the
footer. CHECK is the checksum of the line itself, so a damaged line is not taken for damaged data.
Lines follow each other without a gap from byte 0 to the end of the table: one that is lost,
repeated or out of place is therefore seen. Traces from before CHECK was added have lines without.
"""

import re
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from flatline.files import bytes_in

SUMS = ".crc"
_LINE = re.compile(rb"((\d{1,18}) (\d{1,18}) ([0-9a-f]{8}))(?: ([0-9a-f]{8}))?")


class Span(NamedTuple):
    """Bytes of a file, and their checksum."""

    start: int
    end: int
    crc: int

    def of(self, buffer: Any) -> Any:
        """These bytes, if they are still what was written; `ValueError` otherwise."""
        found = buffer.slice(self.start, self.end - self.start)
        if zlib.crc32(found) != self.crc:
            raise ValueError("it is not what was written: its checksum does not match")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What a `.crc` file says."""

    spans: list[Span]
    """In the order of the file they are about; no byte is in two of them."""
    bad: tuple[str, ...]
    """What is wrong with the lines; a last one without its end is still being written."""

    @property
    def end(self) -> int:
        """Where the last of them ends."""
        return self.spans[-1].end if self.spans else 0

    def covers(self, size: int) -> bool:
        """Whether they are about every byte of a file of this size."""
        ends = [0, *(span.end for span in self.spans)]
        return ends == [*(span.start for span in self.spans), size]


def line_of(start: int, data: Any) -> str:
    """The line for bytes that were written at `start`."""
    body = f"{start} {start + len(data)} {zlib.crc32(data):08x}"
    return f"{body} {zlib.crc32(body.encode()):08x}\n"


def read_sums(path: Path) -> Sums:
    """What the file says, as far as its lines are sound."""
    *lines, _ = bytes_in(path).split(b"\n")
    read = [_span(line) for line in lines]
    sound = [span for span in read if span is not None]
    spans: list[Span] = []
    for span in sorted(sound):
        if span.start >= (spans[-1].end if spans else 0):
            spans.append(span)
    counts = {
        "lines that are no checksum": len(read) - len(sound),
        "lines about bytes that another one is about": len(sound) - len(spans),
        "lines out of order": sum(b < a for a, b in pairwise(sound)),
    }
    bad = tuple(f"{what}: {count}" for what, count in counts.items() if count)
    return Sums(spans=spans, bad=bad)


def _span(line: bytes) -> Span | None:
    found = _LINE.fullmatch(line)
    if found is None or (found[5] and zlib.crc32(found[1]) != int(found[5], 16)):
        return None
    span = Span(int(found[2]), int(found[3]), int(found[4], 16))
    return span if span.end > span.start else None
