"""Fuzz one target until it has run so often; called by run.py.

python benchmarks/fuzz/one.py calculator [options of libFuzzer] [corpus folders]
"""

import gc
import sys

import atheris
from targets import SEEDS, survive


def main() -> None:
    name, *options = sys.argv[1:]
    # Readers import what they need when they run: they run here first, to be instrumented.
    with atheris.instrument_imports(include=["flatline"]):
        for seed in SEEDS[name]():
            survive(name, seed)
    gc.freeze()  # modules stay: the collector need not look at them again and again
    atheris.Setup([sys.argv[0], *options], lambda data: survive(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
