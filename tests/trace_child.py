"""Writes steps in a loop until it is killed, and says which it has completed. Run as a script."""

import sys
from itertools import count

import numpy as np

from flatline.trace.writer import Writer


def main() -> None:
    writer = Writer(sys.argv[1])
    for step in count(1):
        places = [{"step": step, "rank": 0, "rollout": i} for i in range(8)]
        writer.write("rollouts", [{**place, "reward": 1.0} for place in places])
        writer.write("tokens", [{**place, "ids": np.arange(200)} for place in places])
        writer.write("steps", [{"step": step, "reward": 1.0}])
        writer.end_step()
        print(step, flush=True)


main()
