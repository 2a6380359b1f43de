"""Just enough of the protobuf wire format to read W&B and TensorBoard files without their packages.

A message is a run of fields, each with a number. What a number means is up to the caller.
"""

import struct
from collections.abc import Iterator

Value = int | bytes
"""A varint as an unsigned number; anything else as its bytes."""

_SIZES = {1: 8, 5: 4}


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Field numbers and values in order; ValueError where the bytes are no message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"a field of {size} bytes at byte {at} is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def messages(data: bytes, number: int) -> Iterator[bytes]:
    """The values of one field that holds bytes, text or messages."""
    return (value for found, value in fields(data) if found == number and isinstance(value, bytes))


def text(value: Value) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a number where text was expected")
    return value.decode("utf-8")


def signed(value: int) -> int:
    """An int64, which the wire holds as an unsigned number."""
    return value - (1 << 64) if value >= 1 << 63 else value


def floats(data: bytes, code: str) -> list[float]:
    """Packed numbers of one struct code, such as `f` or `d`."""
    if not data or len(data) % struct.calcsize(f"<{code}"):
        raise ValueError(f"{len(data)} bytes where numbers were expected")
    return [float(number) for (number,) in struct.iter_unpack(f"<{code}", data)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"a number at byte {at} is cut off or too long")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
