"""A process that records results, for tests that kill it or let several write at once.

    python -m tests.journal_child FOLDER COUNT NAME [FILES]

With FILES the process is killed in front of the write of that number, as if by `kill -9`.
"""

import os
import signal
import sys
from pathlib import Path

import flatline.journal.folder
from flatline.journal import Journal, record
from tests.journals import curves_of, plan_of, result_of, verdict_of


def main() -> None:
    folder, count, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if len(sys.argv) > 4:
        _die_at(int(sys.argv[4]))
    for i in range(count):
        journal = Journal.open(folder)
        record(journal, plan_of(f"{name}-{i}"), result_of(), verdict_of(), curves_of())


def _die_at(number: int) -> None:
    written = 0
    write = flatline.journal.folder.write_exactly

    def counting(path: Path, pieces: list[str]) -> None:
        nonlocal written
        if written == number:
            os.kill(os.getpid(), signal.SIGKILL)
        written += 1
        write(path, pieces)

    flatline.journal.folder.write_exactly = counting


if __name__ == "__main__":
    main()
