"""How large and how slow is the report of a large run?

    python benchmarks/report.py [--steps 2000] [--rollouts 125] [--tokens 40]
    python benchmarks/report.py --run runs/demo/broken --browser

Records a run of made-up numbers (2,000 steps, 250,000 rollouts, ten million tokens) and writes its
report. Prints the size of the page, the time and the peak memory of a fresh process. With --run the
run is kept there, or an existing one is taken; with --browser Chromium opens the page.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from flatline.trace import Recorder

GROUP = 5
"""Rollouts of one prompt."""
LAYERS = 28
"""Layers of the made-up model, two adapters each."""
_COMMAND = "from flatline.cli import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rollouts", type=int, default=125, help="of one step")
    parser.add_argument("--tokens", type=int, default=40, help="of one rollout")
    parser.add_argument("--run", type=Path, default=None, help="keep or take the run here")
    parser.add_argument("--browser", action="store_true", help="open the page in Chromium")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = asked.run or Path(spare) / "run"
        if not (folder / "run.json").exists():
            record(folder, asked.steps, asked.rollouts, asked.tokens)
        page = Path(spare) / "report.html"
        started = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", _COMMAND, "report", str(folder), "-o", str(page)]
        subprocess.run(command, check=True)
        wall = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        print(f"{wall:.1f} s, {cpu:.1f} s of CPU, {used.ru_maxrss / 1024:.0f} MB at most")
        if asked.browser:
            opened(page)


def opened(page: Path) -> None:
    """How long Chromium takes until the page can be used and its first charts are drawn."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--window-size=1280,1000"):
        options.add_argument(flag)
    driver = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=driver)
    try:
        browser.get("about:blank")
        before = _processor(browser)
        browser.get(page.as_uri())
        browser.execute_script("location.hash = 'charts'")
        while not browser.execute_script("return document.querySelector('.plot > svg')"):
            time.sleep(0.02)
        interactive, now = browser.execute_script(
            "const [entry] = performance.getEntriesByType('navigation');"
            "return [entry.domInteractive, performance.now()]"
        )
        used = _processor(browser) - before
        print(
            f"interactive after {interactive / 1000:.2f} s, first chart within {now / 1000:.2f} s"
        )
        print(f"{used:.2f} s of CPU in all processes of Chromium until then")
    finally:
        browser.quit()


def _processor(browser: Any) -> float:
    """CPU seconds so far: on a shared machine the clock tells little."""
    times = [one.cpu_times() for one in psutil.Process(browser.service.process.pid).children(True)]
    return float(sum(one.user + one.system for one in times))


def record(folder: Path, steps: int, rollouts: int, tokens: int) -> None:
    """A run that climbs, with every table filled."""
    rng = np.random.default_rng(0)
    settings = {"num_generations": GROUP, "beta": 0.04, "max_completion_length": 512}
    with Recorder(folder, settings=settings, seed=0) as recorder:
        recorder.log_vocabulary({i: f" w{i}" for i in range(1000)})
        for step in range(1, steps + 1):
            reward = (rng.random(rollouts) < 0.4 + 0.4 * step / steps).astype(float)
            recorder.log_rollouts([_rollout(rng, step, i, x) for i, x in enumerate(reward)])
            recorder.log_tokens([_tokens(rng, step, i, tokens) for i in range(rollouts)])
            recorder.log_weights([_tensor(rng, step, i) for i in range(2 * LAYERS)])
            recorder.log_step(**_step(rng, step, reward))


def _rollout(rng: np.random.Generator, step: int, i: int, reward: float) -> dict[str, Any]:
    return {
        "step": step,
        "rollout": i,
        "group": i // GROUP,
        "prompt_id": f"{step}-{i // GROUP}",
        "hops": 2 + i // GROUP % 3,
        "reward": reward,
        "advantage": reward - 0.5,
        "parts": {"exact_match": reward, "format": float(rng.random() < 0.9)},
        "finish": "answered",
        "completion_tokens": int(rng.integers(30, 200)),
        "completion": "a completion that says little " * 10,
        "prompt": "a prompt that asks little " * 20,
    }


def _tokens(rng: np.random.Generator, step: int, i: int, n: int) -> dict[str, Any]:
    sampler = -rng.exponential(0.5, n)
    return {
        "step": step,
        "rollout": i,
        "ids": rng.integers(0, 1000, n),
        "author": np.ones(n, np.uint8),
        "trained": np.ones(n, np.uint8),
        "sampler": sampler,
        "trainer": sampler + rng.normal(0, 1e-6, n),
    }


def _tensor(rng: np.random.Generator, step: int, i: int) -> dict[str, Any]:
    side = "AB"[i % 2]
    return {
        "step": step,
        "name": f"model.layers.{i // 2}.self_attn.q_proj.lora_{side}.weight",
        "size": 4096,
        "norm": 10.0,
        "grad_norm": float(rng.uniform(0.1, 0.4)),
        "update_norm": float(rng.uniform(1e-3, 1e-2)),
    }


def _step(rng: np.random.Generator, step: int, reward: np.ndarray) -> dict[str, Any]:
    return {
        "step": step,
        "reward": float(reward.mean()),
        "kl": 1e-4 * step,
        "entropy": float(1 - 1e-4 * step + rng.normal(0, 0.02)),
        "grad_norm": float(rng.uniform(0.3, 0.8)),
        "completion_length": 110.0,
        "truncated_share": 0.01,
        "zero_std_share": 0.2,
    }


if __name__ == "__main__":
    main()
