"""What an exhibit is: one file in `exhibits/` with an `EXHIBIT` and a `run(folder)`.

The library, the releases that have the defect and the reference are in `flatline.releases`, under
the exhibit's name, which is the name of its file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatline.releases import DEFECTS, Defect

if TYPE_CHECKING:
    from flatline.diagnosis.report import Report

FOLDER = Path(__file__).parent / "exhibits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """How a defect is shown."""

    bad: str
    """Release that has it."""
    good: str
    """Release that mended it, or the first later one that runs here."""
    beside: tuple[str, ...] = ()
    """Other wheels on the path, as `name==version`: what these releases were made for."""
    stands_in: str = ""
    """What is put in the place of what does not run here, in words; vLLM's is in `stand_ins/`."""
    lines: str
    """Where in the wheel of the bad release."""
    expects: tuple[str, ...]
    """Hypotheses of which one must come first on the bad release: the cause, or its stage."""
    later: int = 0
    """Round of those that were written before flatline was asked about any of them, and run once;
    0 for the others."""


def names() -> list[str]:
    """Every exhibit, by the name of its file."""
    return sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def module(name: str) -> Any:
    """The file of an exhibit. Importing it brings neither torch nor the library."""
    return import_module(f"museum.exhibits.{name}")


def exhibit(name: str) -> Exhibit:
    found: Exhibit = module(name).EXHIBIT
    return found


def defect(name: str) -> Defect:
    return DEFECTS[name]


def mechanism(name: str) -> str:
    """What happens, in two sentences: the file's docstring."""
    return " ".join(str(module(name).__doc__).split())


Run = Callable[[Path], Mapping[str, "Report"]]
"""Trains in the given folder and returns what flatline said, by the name of the look."""
