"""How often is a log of nothing but noise said to change?

    python benchmarks/remarks.py [--logs 300]

Logs that only go up and down around a level, each row as alike to the one before as the table says:
reward, two parts, length, share of cut completions, share of equal groups, entropy, KL, gradient
norm, spread of the rewards, clipped tokens, a share and a score with names that no table knows, and
TRL's lengths. Counted are logs of which the trend says that the level changes
(`hypotheses/course.py`), of which any remark says that something rises, falls, jumps, goes up or
down for a while or becomes one number, of which one says so with "perhaps", of which any says that
single rows stand out, of which H43 says that the policy collapses, and of which an answer would
begin with an event.
"""

import argparse
import re

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS
from flatline.hypotheses.h43_behaviour_collapse import BehaviourCollapse
from flatline.hypotheses.trend import trend_of
from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event
from flatline.trace import Trace

ROWS = (20, 50, 100, 250)
ALIKE = (0.0, 0.3, 0.6, 0.9)
MOVED = re.compile(
    r" (rises|falls|jumps) (from|to|in)|goes (up|down) to|up to step|rows since step"
)
PERHAPS = "Perhaps"
STANDS_OUT = re.compile(r"at most \(step|otherwise ")
BURN = 60
COUNTED = (
    *("rows", "alike", "level changes", "something moved"),
    *("perhaps", "rows stand out", "collapse", "event"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=300, help="Logs of each kind.")
    logs = parser.parse_args().logs
    print(f"| {' | '.join(COUNTED)} |\n|{'---|' * len(COUNTED)}")
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
        "truncated_share": share(0.05, rows, alike, rng),
        "zero_std_share": share(0.3, rows, alike, rng),
        "entropy": 0.4 * np.exp(0.15 * noise(rows, alike, rng)),
        "kl": 0.02 * np.exp(0.4 * noise(rows, alike, rng)),
        "grad_norm": 0.5 * np.exp(0.5 * noise(rows, alike, rng)),
        "clip_share": 0.01 * np.exp(0.3 * noise(rows, alike, rng)),
    }
    own = {"rewards/a/mean": right, "rewards/b/mean": form}
    own["reward_std"] = 0.3 * np.exp(0.2 * noise(rows, alike, rng))
    own["solved"] = share(0.5, rows, alike, rng)
    own["judged"] = 3 + noise(rows, alike, rng)
    for at, name in enumerate(("min_length", "max_length", "mean_terminated_length")):
        own[f"completions/{name}"] = (100 + 50 * at) * np.exp(0.2 * noise(rows, alike, rng))
    listed = [
        {"step": at + 1}
        | {name: float(values[at]) for name, values in columns.items()}
        | {"metrics": {name: float(values[at]) for name, values in own.items()}}
        for at in range(rows)
    ]
    run = {"source": "import:trl", "unrecognised": ["solved", "judged"], "settings": {}}
    return Trace.from_rows(run=run, steps=listed)


def share(mean: float, rows: int, alike: float, rng: np.random.Generator) -> np.ndarray:
    """How many of 16 completions, as a log has it: in steps, and never below 0 or above 1."""
    each = mean + np.sqrt(mean * (1 - mean) / 16) * noise(rows, alike, rng)
    return np.clip(np.round(16 * each), 0, 16) / 16


def noise(rows: int, alike: float, rng: np.random.Generator) -> np.ndarray:
    """With a standard deviation of 1, each row as alike to the one before."""
    fresh = rng.normal(size=rows + BURN)
    values = np.zeros(rows + BURN)
    for at in range(1, rows + BURN):
        values[at] = alike * values[at - 1] + fresh[at]
    return values[BURN:] * np.sqrt(1 - alike**2)


def told(trace: Trace) -> tuple[bool, ...]:
    trend = trend_of(trace)
    assert trend is not None
    changes = "up to step" in trend.text or "Since step" in trend.text
    told = remarks_of(trace)
    guessed = [text for text in told if text.startswith(PERHAPS)]
    said = " ".join(text for text in told if text not in guessed)
    marks = [MOVED.search(said) is not None, bool(guessed), STANDS_OUT.search(said) is not None]
    try:
        collapse = BehaviourCollapse().sign(trace).level in ALARMS
    except NotRecorded:
        collapse = False
    return changes, *marks, collapse, main_event(trace) is not None


if __name__ == "__main__":
    main()
