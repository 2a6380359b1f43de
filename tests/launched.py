"""Starts `tests/ranks_child.py` on two processes and reads what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOON = 240
"""Seconds after which somebody waits for a process that does not come."""


def launched(folder, *asked):
    """What each process said, by its name and process."""
    command = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--main_process_port", "0"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command, str(ROOT / "tests" / "ranks_child.py"), str(folder), *asked],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "SAID": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=SOON,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {(one["what"], one["process"]): one for one in said_in(folder)}


def said_in(folder):
    """What the processes said in this folder."""
    files = sorted(Path(folder).glob("said_*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines]
