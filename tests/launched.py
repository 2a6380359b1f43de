"""Starts `tests/ranks_child.py` on two processes and reads what they say."""

import json
from pathlib import Path

from tests import warm

CHILD = "from tests.ranks_child import main; main()"


def launched(folder, *asked):
    """What each process said, by its name and process."""
    code, words = warm.run_two(
        CHILD, str(folder), *asked, folder=folder, DS_ACCELERATOR="cpu", SAID=str(folder)
    )
    assert code == 0, words[-3000:]
    return {(one["what"], one["process"]): one for one in said_in(folder)}


def said_in(folder):
    """What the processes said in this folder."""
    files = sorted(Path(folder).glob("said_*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines]
