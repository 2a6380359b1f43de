"""`python -m museum.fetch [NAME ...]`: every wheel that exhibits need, unpacked.

For a machine without network: `runs/museum/releases` is all that `python -m museum` needs there.
All of them are for any Python from 3.10 on.
"""

import argparse
from pathlib import Path

from museum.exhibit import defect, exhibit, names
from museum.wheels import unpacked


def needed(name: str) -> set[str]:
    """The wheels of one exhibit, as `name==version`."""
    one, library = exhibit(name), defect(name).library
    return {f"{library}=={one.bad}", f"{library}=={one.good}", *one.beside}


def main() -> None:
    ask = argparse.ArgumentParser(prog="python -m museum.fetch", description=__doc__)
    ask.add_argument("names", nargs="*", metavar="NAME", help="exhibits; all without one")
    ask.add_argument("--out", type=Path, default=Path("runs/museum"))
    given = ask.parse_args()
    for wheel in sorted(set().union(*map(needed, given.names or names()))):
        print(unpacked(wheel, given.out / "releases").name, flush=True)


if __name__ == "__main__":
    main()
