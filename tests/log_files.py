"""Logs as files, for the tests of their importers."""

import json

import pytest

from flatline.errors import TraceError
from flatline.trace.importers import open_log


def written(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(folder, *rows, name="log.jsonl"):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return written(folder, name, "\n".join(lines) + "\n")


def refusal(path):
    with pytest.raises(TraceError) as caught:
        open_log(path)
    return str(caught.value)
