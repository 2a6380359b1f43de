"""GRPO on the Tinker API, served by SkyRL-tx with the real `tinker` client.

    pip install --target FOLDER --no-deps skyrl-tx==0.3.0
    pip install --target FOLDER tinker==0.12.0 'transformers<5' jax 'flax>=0.12.2' 'optax>=0.2.5' \
        'fastapi[standard]' sqlmodel 'sqlalchemy[asyncio]' aiosqlite cloudpathlib hf_transfer
    FLATLINE_SKYRL_TX=FOLDER pytest tests/quality/test_tinker_served.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = os.environ.get("FLATLINE_SKYRL_TX")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tinker_api.py"


@pytest.mark.skipif(
    not FOLDER, reason="FLATLINE_SKYRL_TX names no folder with skyrl-tx 0.3.0 and tinker 0.12.0"
)
def test_a_real_server_is_silent_when_healthy_and_each_defect_is_named():
    command = [sys.executable, SCRIPT, "--server-path", FOLDER]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines()[2:]]
    told = {row[0]: (row[2], row[3]) for row in rows}
    assert told["nothing"] == ("silent", "silent")
    assert "H02" in told["mask"][0] and "H51" in told["mask"][1]
    assert "H17" in told["stale"][0] and "H59" in told["stale"][1]
    assert all("H21" in cell for cell in told["temperature"])
