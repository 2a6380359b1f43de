"""Which cells there are, and in which order, so that a benchmark broken off is worth most.

Seed 0 of every fault comes first, then seed 1, then seed 2, with the held-out healthy setups spread
among them; then another task, then the second strength of each fault, with one seed each. The
calibration setups, which no figure counts, are last.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.planting import MILDER, MUSIQUE_ONLY, PAIRS, QUICK
from bench.setups import CALIBRATION, Changes, held_out
from flatline.config import RunConfig
from flatline.errors import ConfigError

HEALTHY = "healthy"
SEEDS = (0, 1, 2)
STEPS, QUICK_STEPS = 40, 10
EVAL_LIMIT, QUICK_EVAL_LIMIT = 256, 64
BETA = 0.04
"""Weight of the KL in faulty runs and in the healthy ones that they are compared with."""
SECOND_TASK = "toolmath"


class Kind(StrEnum):
    """What a cell is there for."""

    REFERENCE = "reference"
    """The healthy run that faulty ones of the same task and seed are compared with."""
    FAULT = "fault"
    """One fault, or a preset."""
    PAIR = "pair"
    """Two faults at once."""
    CALIBRATION = "calibration"
    """A healthy setup that thresholds were set on."""
    HELD_OUT = "held-out"
    """A healthy setup that nobody looked at before."""
    REPEATED = "repeated"
    """One that was called so, though calibration has it too, but for the seed; counts nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the benchmark."""

    name: str
    """Of its folder."""
    kind: Kind
    """What it is there for."""
    changes: Mapping[str, Any]
    """Settings of its `RunConfig` that are not the default."""
    planted: tuple[str, ...] = ()
    """Names of its faults, a preset written out."""
    wanted: tuple[str, ...] = ()
    """Hypotheses of its faults, as many as `planted`."""
    first: tuple[str, ...] = ()
    """Hypotheses of which one must be named first."""

    @property
    def fault(self) -> str | None:
        return self.changes.get("fault")

    @property
    def task(self) -> str:
        return str(self.changes.get("task", "musique"))

    @property
    def seed(self) -> int:
        return int(self.changes["seed"])

    @property
    def steps(self) -> int:
        return int(self.changes["max_steps"])

    @property
    def reference(self) -> str:
        """Name of the healthy cell that it is compared with."""
        return _name(self.task, HEALTHY, self.seed)

    def config(self, folder: Path) -> RunConfig:
        """The run, recorded in a folder."""
        return RunConfig.from_dict({**self.changes, "output_dir": str(folder)}, source=self.name)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "changes": dict(self.changes),
            "planted": list(self.planted),
            "wanted": list(self.wanted),
            "first": list(self.first),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Cell":
        return cls(
            name=str(values["name"]),
            kind=Kind(values["kind"]),
            changes=dict(values["changes"]),
            planted=tuple(values["planted"]),
            wanted=tuple(values["wanted"]),
            first=tuple(values["first"]),
        )


def full_plan() -> list[Cell]:
    """Every fault on every seed, pairs, second strengths, a second task and all healthy setups."""
    names, healthy = _fault_names(), _healthy_cells()
    unseen = [cell for cell in healthy if cell.kind is Kind.HELD_OUT]
    seen = [cell for cell in healthy if cell.kind is Kind.CALIBRATION]
    cells: list[Cell] = []
    for seed in SEEDS:
        faulty = [_faulty(name, seed) for name in (*names, *PAIRS)]
        cells += [_reference("musique", seed), *spread(faulty, _third(unseen, seed))]
    elsewhere = [name for name in names if name not in MUSIQUE_ONLY]
    cells.append(_reference(SECOND_TASK, 0))
    cells += [_faulty(name, 0, task=SECOND_TASK) for name in elsewhere]
    cells += [_faulty(f"{name}:{strength:g}", 0) for name, strength in MILDER.items()]
    return cells + seen


def quick_plan() -> list[Cell]:
    """A few cells with few steps: whether the benchmark runs, not what flatline is worth."""
    small = {"max_steps": QUICK_STEPS, "eval_limit": QUICK_EVAL_LIMIT}
    healthy = [cell for cell in _healthy_cells() if cell.name.endswith("-beta-0.01")]
    faulty = [_faulty(name, 0) for name in QUICK]
    cells = [_reference("musique", 0), *spread(faulty, healthy)]
    return [_changed(cell, small) for cell in cells]


def chosen(cells: Sequence[Cell], only: str | None) -> list[Cell]:
    """The cells whose name fits one of the patterns, joined with commas."""
    if only is None:
        return list(cells)
    patterns = [pattern.strip() for pattern in only.split(",")]
    found = [cell for cell in cells if any(fnmatch(cell.name, one) for one in patterns)]
    if not found:
        raise ConfigError(
            f"--only {only!r} fits none of the {len(cells)} cells, such as {cells[0].name}.\n"
            "Give names with * for any text; `flatline bench --dry-run` lists all of them."
        )
    return found


def spread(cells: Sequence[Cell], among: Sequence[Cell]) -> list[Cell]:
    """Both lists in one, the second spread evenly over the first."""
    placed = [((i + 1) / (len(cells) + 1), 0, cell) for i, cell in enumerate(cells)]
    placed += [((i + 1) / (len(among) + 1), 1, cell) for i, cell in enumerate(among)]
    return [cell for _, _, cell in sorted(placed, key=lambda one: one[:2])]


def _third(cells: Sequence[Cell], seed: int) -> Sequence[Cell]:
    """What of the healthy cells goes with a seed; neighbours are of different tasks."""
    ends = [i * len(cells) // len(SEEDS) for i in range(len(SEEDS) + 1)]
    return cells[ends[seed] : ends[seed + 1]]


def _fault_names() -> list[str]:
    from flatline.faults import FAULTS, PRESETS  # brings torch

    return [*(fault.name for fault in FAULTS), *PRESETS]


def _healthy_cells() -> list[Cell]:
    return [*_setups(Kind.CALIBRATION, CALIBRATION), *_setups(Kind.HELD_OUT, held_out())]


def _setups(kind: Kind, setups: Mapping[str, Changes]) -> Iterator[Cell]:
    for name, changes in setups.items():
        yield Cell(name=f"{kind.value}.{name}", kind=kind, changes=_sized(changes))


def _reference(task: str, seed: int) -> Cell:
    changes = _sized({"task": task, "kl_beta": BETA, "seed": seed})
    return Cell(name=_name(task, HEALTHY, seed), kind=Kind.REFERENCE, changes=changes)


def _faulty(text: str, seed: int, *, task: str = "musique") -> Cell:
    from flatline.faults import PRESETS, find

    found = [planted.fault for planted in find(text)]
    wanted = tuple(fault.hypothesis for fault in found)
    return Cell(
        name=_name(task, text, seed),
        kind=Kind.PAIR if text in PAIRS else Kind.FAULT,
        changes=_sized({"task": task, "kl_beta": BETA, "seed": seed, "fault": text}),
        planted=tuple(fault.name for fault in found),
        wanted=wanted,
        # A preset must name its worst defect first, which is planted last.
        first=wanted[-1:] if text in PRESETS else wanted,
    )


def _sized(changes: Changes) -> Changes:
    return {"max_steps": STEPS, "eval_limit": EVAL_LIMIT, **changes}


def _changed(cell: Cell, changes: Changes) -> Cell:
    return Cell.from_json({**cell.to_json(), "changes": {**cell.changes, **changes}})


def _name(task: str, what: str, seed: int) -> str:
    where = "" if task == "musique" else f"{task}."
    return f"{where}{what.replace(':', '=')}-s{seed}"
