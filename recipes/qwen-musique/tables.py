"""The evidence from the GPU: kept in one small file, printed as the tables of the docs.

    python tables.py pack FOLDER FILE.json        # from the results of a visit, see packing.py
    python tables.py print FILE.json [SECTION]    # the tables; all of them without a section

Nothing is trained and no run is needed to print: the file holds every held-out play, every curve,
and what the commands said.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import tables_learning as learning
import tables_looks as looks
import tables_speed as speed
from packing import pack
from tables_learning import Json, Rows

from flatline.errors import FlatlineError
from flatline.files import json_in, write_atomically

SECTIONS: dict[str, tuple[Callable[[Json], Rows], str]] = {
    "ran": (speed.ran, "log"),
    "warmstart": (speed.warmstart, "warmstart"),
    "baseline": (looks.baseline, "baseline"),
    "trainings": (learning.trainings, "runs"),
    "curves": (learning.curves, "runs"),
    "trend": (looks.trend, "runs/healthy-0/diagnosis/trend"),
    "heldout": (learning.heldout, "runs"),
    "arms": (learning.arms, "runs"),
    "parts": (learning.parts, "runs/healthy-0"),
    "part-gains": (learning.part_gains, "runs/healthy-0"),
    "parts-of-arms": (learning.parts_of_arms, "runs/healthy-0"),
    "beside": (learning.beside, "runs/healthy-0"),
    "control": (learning.control, "runs/gsm8k-healthy"),
    "said": (looks.said, "runs/gsm8k-healthy"),
    "verdict": (looks.verdict, "verdict"),
    "diagnoses": (looks.diagnoses, "runs"),
    "checkups": (looks.checkups, "checkups"),
    "checkup-time": (speed.checkup_time, "tables/checkup-healthy"),
    "recorder": (speed.recorder, "tables/recorder"),
    "engine": (speed.engine, "tables/engine-96"),
    "vllm": (speed.vllm, "vllm"),
    "zero": (speed.zero, "zero"),
    "costs": (speed.costs, "gpu"),
}
"""What prints a section, and what a file must hold for it: visits differ in their stages."""


def main() -> None:
    args = _arguments()
    try:
        if args.what == "pack":
            write_atomically(args.file, [json.dumps(pack(args.folder), separators=(",", ":"))])
        else:
            _print(json_in(args.file), args)
    except (OSError, ValueError, LookupError, FlatlineError) as error:
        source = args.folder if args.what == "pack" else args.file
        sys.exit(
            f"tables: {source} cannot be read ({type(error).__name__}: {error}).\n"
            "`pack` wants the folder that packing.py describes, `print` the file that `pack` wrote."
        )


def _print(kept: Json, args: argparse.Namespace) -> None:
    if args.section and args.section not in held(kept):
        sys.exit(f"tables: {args.file} holds nothing for {args.section}: not part of this visit.")
    for one in [args.section] if args.section else held(kept):
        print(f"## {one}\n\n{shown(kept, one)}\n")


def held(kept: Json) -> list[str]:
    """Sections for which this file has something."""

    def has(path: str) -> bool:
        found = kept
        for key in path.split("/"):
            found = found.get(key, {})
        return bool(found)

    return [section for section, (_, needs) in SECTIONS.items() if has(needs)]


def shown(kept: Json, section: str) -> str:
    """One section as the docs hold it."""
    show, _ = SECTIONS[section]
    return "\n".join(show(kept))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    packs = commands.add_parser("pack", help="one small file from a folder of results")
    packs.add_argument("folder", type=Path)
    packs.add_argument("file", type=Path)
    prints = commands.add_parser("print", help="the tables that the docs hold")
    prints.add_argument("file", type=Path)
    prints.add_argument("section", nargs="?", choices=SECTIONS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
