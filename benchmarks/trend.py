"""How often is a log of nothing but noise said to rise or fall?

    python benchmarks/trend.py [--logs 400]

Rewards without any trend, raw and as an exponential mean of 0.9, tested as `diagnose` does and
without regard to how alike the rows are; and how often they are said to end at nothing. The
noisiest are means of eight rewards of 0 or 1. A line that rises by 0.3 shows what the care costs.
"""

import argparse

import numpy as np

from flatline.hypotheses.trend import thirds, trend_of
from flatline.stats import Estimate, difference_of_means
from flatline.trace import Trace

ROWS = (12, 30, 100)
NOISE = 0.1
"""Standard deviation of the mean reward of a step."""
FEW = 8
"""Rewards of 0 or 1 behind the noisiest rows; one in ten is 1, so that rows of 0 are common."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=400, help="Logs of each kind.")
    logs = parser.parse_args().logs
    print("| log | rows | called certain | rows taken as independent | ends at nothing |")
    print("|---|---|---|---|---|")
    for name, keep, rise in (
        ("noise, raw", 0.0, 0.0),
        ("noise, smoothed with 0.9", 0.9, 0.0),
        ("rises by 0.3, raw", 0.0, 0.3),
        ("rises by 0.3, smoothed with 0.9", 0.9, 0.3),
        ("eight rewards a row, raw", 0.0, None),
        ("eight rewards a row, smoothed with 0.9", 0.9, None),
    ):
        for rows in ROWS:
            told = np.mean([_certain(_log(rows, keep, rise, seed)) for seed in range(logs)], axis=0)
            print(f"| {name} | {rows} | {told[0]:.0%} | {told[1]:.0%} | {told[2]:.2%} |")


def _log(rows: int, keep: float, rise: float | None, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if rise is None:
        raw = rng.binomial(FEW, 0.1, rows) / FEW
    else:
        raw = 0.5 + np.linspace(0, rise, rows) + rng.normal(0, NOISE, rows)
    shown = [raw[0]]
    for value in raw[1:]:
        shown.append(keep * shown[-1] + (1 - keep) * value)
    return np.array(shown)


def _certain(values: np.ndarray) -> tuple[bool, bool, bool]:
    """As `diagnose` tells it, where every row counts, and whether it is said to end at nothing."""
    step = np.arange(1, len(values) + 1)
    rows = [{"step": int(s), "reward": float(v)} for s, v in zip(step, values, strict=True)]
    trend, plain = trend_of(Trace.from_rows(steps=rows)), thirds(values, step)
    assert trend is not None
    assert plain is not None
    as_told, each_row = trend.change, difference_of_means(plain.early, plain.late)
    return _excludes_0(as_told), _excludes_0(each_row), trend.gone


def _excludes_0(change: Estimate) -> bool:
    return change.low > 0 or change.high < 0


if __name__ == "__main__":
    main()
