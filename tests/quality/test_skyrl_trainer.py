"""SkyRL's own training loop (`RayPPOTrainer.train`), recorded by its callback.

    pip install --target FOLDER --no-deps skyrl==0.3.0 skyrl-gym loguru omegaconf \
        antlr4-python3-runtime==4.9.3 hydra-core jaxtyping wadler_lindig tensordict func_timeout \
        torchdata aiohttp aiosignal frozenlist multidict yarl propcache aiohappyeyeballs polars \
        polars-runtime-32 httpx httpcore h11 anyio
    FLATLINE_SKYRL=FOLDER pytest tests/quality/test_skyrl_trainer.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = os.environ.get("FLATLINE_SKYRL")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "skyrl_callback.py"


@pytest.mark.skipif(not FOLDER, reason="FLATLINE_SKYRL names no folder with skyrl 0.3.0")
def test_the_loop_of_skyrl_is_silent_when_healthy_and_each_defect_is_named():
    command = [sys.executable, SCRIPT, "--skyrl-path", FOLDER]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines()[2:]]
    told = {row[0]: row[2] for row in rows}
    assert told["nothing"] == "silent"
    assert told["mask"].startswith("H02")
    assert told["stale"].startswith("H06")
    assert told["temperature"].startswith("H21")
