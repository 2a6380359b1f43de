"""How often are evaluations of nothing but noise said to rise, or to fall after their best?

    python benchmarks/evaluations.py [--logs 1000]

Courses of a score that only goes up and down, each evaluation as alike to the one before as the
table says. One that rises by eight standard deviations of an evaluation and falls by six shows what
the care costs.
"""

import argparse

import numpy as np
from remarks import noise

from flatline.hypotheses.held_out import Course, course_of

EVALUATIONS = (6, 8, 13, 20, 40)
ALIKE = (0.0, 0.3, 0.6)
OFF = 0.03
"""Standard deviation of one evaluation."""
RISE, FALL = 8 * OFF, 6 * OFF


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=1000, help="Courses of each kind.")
    logs = parser.parse_args().logs
    print("| evaluations | alike | noise rises | noise falls | noise may fall | a fall is seen |")
    print("|---|---|---|---|---|---|")
    for rows in EVALUATIONS:
        for alike in ALIKE:
            still = [course(np.full(rows, 0.5), alike, seed) for seed in range(logs)]
            turned = [course(up_and_down(rows), alike, seed) for seed in range(logs)]
            ways = ("rises", "falls", "leans")
            told = " | ".join(f"{np.mean([getattr(c, way) for c in still]):.1%}" for way in ways)
            seen = np.mean([one.falls for one in turned])
            print(f"| {rows} | {alike} | {told} | {seen:.0%} |")


def up_and_down(rows: int) -> np.ndarray:
    top = 2 * rows // 5
    return 0.5 + np.interp(np.arange(rows), [0, top, rows - 1], [0, RISE, RISE - FALL])


def course(level: np.ndarray, alike: float, seed: int) -> Course:
    values = level + OFF * noise(len(level), alike, np.random.default_rng(seed))
    found = course_of(values, np.arange(len(level)))
    assert found is not None
    return found


if __name__ == "__main__":
    main()
