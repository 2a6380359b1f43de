"""What it costs a checkup to put a training back: `python benchmarks/put_back.py`.

The tiny TRL trainer of the tests, on one core. CPU seconds, as a share of the same checkups.
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from tests.test_subject import users_trainer

import flatline
from flatline.live.restore.snapshot import Snapshot

CHECKUPS = 7
PARTS = ("__init__", "put_back", "digests")


def clocked(name, spent, calls):
    """The method of `Snapshot`, with its seconds added up."""
    method = getattr(Snapshot, name)

    def call(*args, **kwargs):
        begun = time.process_time()
        try:
            return method(*args, **kwargs)
        finally:
            spent[name] += time.process_time() - begun
            calls[name] += 1

    setattr(Snapshot, name, call)


def main():
    flatline.checkup(users_trainer(tempfile.mkdtemp()))  # imports
    spent, calls = Counter(), Counter()
    for name in PARTS:
        clocked(name, spent, calls)
    trainers = [users_trainer(tempfile.mkdtemp()) for _ in range(CHECKUPS)]
    begun = time.process_time()
    kept = max(flatline.checkup(trainer).put_back.kept for trainer in trainers)
    whole = time.process_time() - begun
    weights = sum(weight.numel() for weight in trainers[0].model.parameters())
    print(f"{weights:,} weights, {kept:,} things kept; a checkup takes {whole / CHECKUPS:.2f} s")
    for name in PARTS:
        each = 1e3 * spent[name] / calls[name]
        print(f"{name}: {calls[name] // CHECKUPS} times {each:.1f} ms, {spent[name] / whole:.1%}")
    print(f"together {sum(spent.values()) / whole:.1%} of a checkup")


if __name__ == "__main__":
    main()
