"""How often is a log of nothing but noise said to change?

    python benchmarks/remarks.py [--logs 300]

Logs with TRL's columns that only go up and down around a level: reward, two parts, length, entropy,
KL, gradient norm and the spread of rewards, each row as alike to the one before as the table says.
Counted are logs of which the trend says that the level changes (`hypotheses/course.py`), of which
any remark says that something moved, and of which H43 says that the policy collapses.
"""

import argparse

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS
from flatline.hypotheses.h43_behaviour_collapse import BehaviourCollapse
from flatline.hypotheses.trend import trend_of
from flatline.remarks import remarks_of
from flatline.trace import Trace

ROWS = (20, 50, 100, 250)
ALIKE = (0.0, 0.3, 0.6, 0.9)
MOVED = (" goes from ", " go from ", "Completions go", " rises from ", " falls from ", "KL falls")
BURN = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=300, help="Logs of each kind.")
    logs = parser.parse_args().logs
    print("| rows | alike | level changes | something moved | collapse |\n|---|---|---|---|---|")
    for rows in ROWS:
        for alike in ALIKE:
            said = np.mean([told(log(rows, alike, seed)) for seed in range(logs)], axis=0)
            print(f"| {rows} | {alike} | " + " | ".join(f"{share:.1%}" for share in said) + " |")


def log(rows: int, alike: float, seed: int) -> Trace:
    """A run that does nothing."""
    rng = np.random.default_rng(seed)
    right, form = (0.5 + 0.1 * noise(rows, alike, rng), 0.2 + 0.02 * noise(rows, alike, rng))
    columns = {
        "reward": right + form,
        "completion_length": 200 * np.exp(0.15 * noise(rows, alike, rng)),
        "entropy": 0.4 * np.exp(0.15 * noise(rows, alike, rng)),
        "kl": 0.02 * np.exp(0.4 * noise(rows, alike, rng)),
        "grad_norm": 0.5 * np.exp(0.5 * noise(rows, alike, rng)),
    }
    own = {"rewards/a/mean": right, "rewards/b/mean": form}
    own["reward_std"] = 0.3 * np.exp(0.2 * noise(rows, alike, rng))
    listed = [
        {"step": at + 1}
        | {name: float(values[at]) for name, values in columns.items()}
        | {"metrics": {name: float(values[at]) for name, values in own.items()}}
        for at in range(rows)
    ]
    run = {"source": "import:trl", "unrecognised": [], "settings": {}}
    return Trace.from_rows(run=run, steps=listed)


def noise(rows: int, alike: float, rng: np.random.Generator) -> np.ndarray:
    """With a standard deviation of 1, each row as alike to the one before."""
    fresh = rng.normal(size=rows + BURN)
    values = np.zeros(rows + BURN)
    for at in range(1, rows + BURN):
        values[at] = alike * values[at - 1] + fresh[at]
    return values[BURN:] * np.sqrt(1 - alike**2)


def told(trace: Trace) -> tuple[bool, bool, bool]:
    trend = trend_of(trace)
    assert trend is not None
    changes = "up to step" in trend.text or "Since step" in trend.text
    moved = any(mark in text for text in remarks_of(trace) for mark in MOVED)
    try:
        collapse = BehaviourCollapse().sign(trace).level in ALARMS
    except NotRecorded:
        collapse = False
    return changes, moved, collapse


if __name__ == "__main__":
    main()
