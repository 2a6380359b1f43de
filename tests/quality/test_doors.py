"""Every attack of `benchmarks/fuzz/doors.py`: all are told or answered, none is silent or hangs."""

import subprocess
import sys
from pathlib import Path

from tests.quality.report import report

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "fuzz" / "doors.py"


def test_nothing_comes_in_that_nobody_asked_for():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines()[2:]:
        report(line)
    assert done.returncode == 0, done.stderr[-4000:]
