"""`python -m museum.symptom NAME ...`: the defect itself, in both releases, without flatline.

For exhibits that are written before flatline is asked about them: that the defect is in the bad
release and not in the good one is shown by a number of the library's own, in a process of its own.
"""

import argparse
import os
import tempfile
import warnings
from pathlib import Path

from museum.exhibit import exhibit, module
from museum.run import in_process, paths_of


def main() -> None:
    ask = argparse.ArgumentParser(prog="python -m museum.symptom", description=__doc__)
    ask.add_argument("names", nargs="+", metavar="NAME")
    ask.add_argument("--out", type=Path, default=Path("runs/museum"), help="wheels")
    ask.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = ask.parse_args()
    if given.here:
        _here(given.names[0])
    else:
        _both(given.names, given.out)


def _both(names: list[str], out: Path) -> None:
    for name in names:
        one = exhibit(name)
        for release in (one.bad, one.good):
            print(f"{name} {release}: {_said(name, release, out)}", flush=True)


def _said(name: str, release: str, out: Path) -> str:
    folder = Path(tempfile.mkdtemp(prefix="museum-symptom-"))
    paths = paths_of(name, exhibit(name), release, out)
    in_process(["museum.symptom", "--here", name], paths, folder)
    return (folder / "log.txt").read_text(encoding="utf-8").strip().splitlines()[-1]


def _here(name: str) -> None:
    warnings.filterwarnings("ignore")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    print(module(name).symptom(Path.cwd()))


if __name__ == "__main__":
    main()
