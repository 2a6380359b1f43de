"""A page of the browser beside a real training of the lab policy."""

import subprocess
import sys

import pytest

from tests.browser.conftest import browser, served, wait
from tests.browser.test_live import points, state

__all__ = ["browser"]
"""A fixture."""
LAB = (
    "from flatline.config import RunConfig; from flatline.training.run import train;"
    "import sys; train(RunConfig(task='musique', max_steps=3, batch_size=8, num_generations=4,"
    "eval_limit=0, output_dir=sys.argv[1]))"
)


def test_a_page_follows_a_real_training(tmp_path, browser):
    pytest.importorskip("trl", reason="training is not installed")
    run = tmp_path / "lab"
    training = subprocess.Popen([sys.executable, "-c", LAB, str(run)], stderr=subprocess.DEVNULL)
    window = browser()
    try:
        wait(lambda: (run / "run.json").exists(), seconds=300)
        with served(tmp_path) as site:
            window.get(f"{site}/run/lab")
            window.execute_script("window.kept = true")
            assert state(window) == "still running"
            wait(lambda: state(window) == "finished", seconds=240)
            wait(lambda: points(window) == 3)
            assert window.execute_script("return window.kept")
    finally:
        training.kill()
        training.wait()
