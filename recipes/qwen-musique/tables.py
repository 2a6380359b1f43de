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

SECTIONS: dict[str, Callable[[Json], Rows]] = {
    "ran": speed.ran,
    "warmstart": speed.warmstart,
    "baseline": looks.baseline,
    "trainings": learning.trainings,
    "curves": learning.curves,
    "heldout": learning.heldout,
    "arms": learning.arms,
    "parts": learning.parts,
    "parts-of-arms": learning.parts_of_arms,
    "beside": learning.beside,
    "control": learning.control,
    "said": looks.said,
    "verdict": looks.verdict,
    "diagnoses": looks.diagnoses,
    "checkups": looks.checkups,
    "checkup-time": speed.checkup_time,
    "engine": speed.engine,
    "vllm": speed.vllm,
    "costs": speed.costs,
}


def main() -> None:
    args = _arguments()
    try:
        if args.what == "pack":
            write_atomically(args.file, [json.dumps(pack(args.folder), separators=(",", ":"))])
        else:
            _print(json_in(args.file), args.section)
    except (OSError, ValueError, LookupError, FlatlineError) as error:
        source = args.folder if args.what == "pack" else args.file
        sys.exit(
            f"tables: {source} cannot be read ({type(error).__name__}: {error}).\n"
            "`pack` wants the folder that packing.py describes, `print` the file that `pack` wrote."
        )


def _print(kept: Json, section: str | None) -> None:
    for one in [section] if section else SECTIONS:
        print(f"## {one}\n\n{shown(kept, one)}\n")


def shown(kept: Json, section: str) -> str:
    """One section as the docs hold it."""
    return "\n".join(SECTIONS[section](kept))


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
