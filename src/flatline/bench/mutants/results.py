"""What a study came to, put together: each mutant with its looks, its harm and other tools."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatline.bench.harm import FEWEST_SEEDS, Harm, Verdict, corrected, student_p
from flatline.bench.mutants.difference import Effect
from flatline.bench.mutants.study import (
    MUTANTS_FILE,
    SEEDS_FILE,
    STUDY_FILE,
    Change,
    Row,
    change_of,
    rows_in,
    trace_name,
)
from flatline.errors import ConfigError
from flatline.files import json_in
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.departure import Departure
from flatline.stats import UNKNOWN, mean_of_units

PEERS_FILE = "peers.jsonl"
LINES = 5
"""Among so many shown lines the changed one should be."""
UNCHANGED_RUN = "unchanged"
OWN_TO_SAY = ("rows", "prompts", "rewards")
"""Stages of which the script itself is the only statement of intent."""
BEFORE_REWARDS = {"rows", "prompts", "completions", "delivery"}
"""What a loop's rewards follow from."""
_OF_ROWS = ("H33", "H44")
"""Hypotheses about the order of the data: rows have no departure of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One mutant and all that is known of it."""

    study: Row
    row: Row
    harm: Harm | None = None
    """None where it was not trained whole."""
    diagnosis: Row | None = None
    """Of its first seed; None where it was not trained."""
    peers: Mapping[str, Row] | None = None

    @property
    def effect(self) -> Effect:
        return Effect(self.row["effect"])

    @property
    def change(self) -> Row:
        return dict(self.row["mutation"])

    @property
    def looked_at(self) -> bool:
        return "alarms" in self.row.get("checkup", {})

    @property
    def refused(self) -> bool:
        """Whether the checkup says in words what stops the training, and that there is nothing to
        look at: not an alarm by its form, and as good as one to a reader."""
        return str(self.row.get("checkup", {}).get("error", "")).startswith("ConfigError")

    @property
    def alarms(self) -> list[Row]:
        return list(self.row.get("checkup", {}).get("alarms", ()))

    @property
    def diagnosed(self) -> list[Row]:
        return list((self.diagnosis or {}).get("alarms", ()))

    @property
    def is_a_wish(self) -> bool:
        """Whether the user's own script pays or prepares otherwise, and contradicts nothing else
        that it says: a silent change of what is asked for, which a tool can only take as said."""
        own = str(self.change["module"]).endswith(".py")
        silent = not self.alarms and not self.refused
        return own and silent and self.row.get("stage") in OWN_TO_SAY

    @property
    def hurts(self) -> bool:
        return self.harm is not None and self.harm.verdict is Verdict.HURTS

    @property
    def right_stage(self) -> bool:
        """Whether the first alarm of the checkup is about the stage that the change changed."""
        loop = self.row.get("kind") == "loop"
        return bool(self.alarms) and self.row.get("stage") in stages_of(
            self.alarms[0]["hypothesis"], self.row.get("step", 1), loop=loop
        )

    @property
    def missed(self) -> bool:
        """Whether it trains otherwise and is not named: nothing, another stage, another place."""
        if self.effect is not Effect.CHANGES or self.refused:
            return False
        staged = not self.row.get("stage") or self.right_stage
        return not (self.alarms and staged and self.function_first and self.line_shown)

    @property
    def line_shown(self) -> bool:
        """Whether the changed line is among those that the first alarm shows."""
        lines = {self.change["line"], self.row.get("statement")}
        return any(one["line"] in lines and self._holds(one) for one in self._where[:LINES])

    @property
    def function_first(self) -> bool:
        """Whether the first of them is in the changed function."""
        return any(
            str(one["function"]).replace(".<locals>", "") == self.change["function"]
            and self._holds(one)
            for one in self._where[:1]
        )

    @property
    def _where(self) -> list[Row]:
        return list(self.alarms[0].get("where", ())) if self.alarms else []

    def _holds(self, place: Row) -> bool:
        """Whether a place is in the changed file."""
        name = str(self.change["module"])
        file = name if name.endswith(".py") else name.rpartition(".")[2] + ".py"
        return str(place["file"]).replace("\\", "/").rpartition("/")[2] == file


def stages_of(hypothesis: str, step: int, *, loop: bool = False) -> set[str]:
    """Stages whose departure a hypothesis names or accounts for, by its own declaration, and those
    that nobody can tell from them by what was heard:

    - Completions that are others from the second step on, with the same weights in the trainer,
      may be made with weights that were not delivered.
    - A gradient that is another while each log-prob has the same value and the same weight in the
      loss comes from log-probs that follow the weights otherwise.
    - A ratio that is wrong for a whole completion scales its whole row where every ratio is 1.
    - Of a loop nothing is heard in front of its rewards: what makes them may be at fault.
    """
    departures = [one for one in HYPOTHESES if isinstance(one, Departure)]
    found = {one.stage for one in departures if hypothesis in (one.id, *one.named_by)}
    if hypothesis in _OF_ROWS:
        found.add("rows")
    if step > 1 and "delivery" in found:
        found.add("completions")
    if "log-probs" in found:
        found.add("gradient")
    if "ratio and KL" in found:
        found.add("loss")
    if loop and found & BEFORE_REWARDS:
        found.add("rewards")
    return found


def missed_in(folder: Path) -> frozenset[Change]:
    """Changes of a kept study that were not named."""
    return frozenset(change_of(one.change) for one in read(folder) if one.missed)


def read(folder: Path) -> list[Tried]:
    """Every mutant of the study in a folder, or of all studies below it."""
    folders = sorted(file.parent for file in folder.rglob(STUDY_FILE))
    found = [one for study in folders for one in _tried(study)]
    if not found:
        raise ConfigError(
            f"{folder} has no results.\nThere is nothing to count yet.\n"
            f"Type `flatline bench mutants run SCRIPT --out {folder}`."
        )
    return _together(found)


def _tried(folder: Path) -> list[Tried]:
    study = {**json_in(folder / STUDY_FILE), "folder": folder.name}
    seeds: dict[str, list[Row]] = defaultdict(list)
    for row in rows_in(folder / SEEDS_FILE):
        seeds[trace_name(row["mutation"])].append(row)
    peers = {row["run"]: row["said"] for row in rows_in(folder / PEERS_FILE)}
    return [
        Tried(
            study=study,
            row=row,
            harm=_harm(seeds[UNCHANGED_RUN], seeds.get(name, ())),
            diagnosis=next((one["diagnosis"] for one in seeds[name] if "diagnosis" in one), None),
            peers=peers.get(name),
        )
        for row in rows_in(folder / MUTANTS_FILE)
        for name in [trace_name(row["mutation"])]
    ]


def _harm(healthy: Sequence[Row], changed: Sequence[Row]) -> Harm | None:
    """What a change cost: the unchanged script's reward with the same seed, less its own."""
    if not changed:
        return None
    good = {row["seed"]: row["reward"] for row in healthy if "reward" in row}
    by_seed = {
        row["seed"]: good[row["seed"]] - row["reward"]
        for row in changed
        if "reward" in row and row["seed"] in good
    }
    broken = any("error" in row for row in changed)
    enough = len(by_seed) >= FEWEST_SEEDS
    lost = mean_of_units(list(by_seed.values())) if enough else UNKNOWN
    verdict = Verdict.HARMLESS if enough else Verdict.OPEN
    if lost.low > 0:
        verdict = Verdict.UNCORRECTED
    return Harm(
        verdict=Verdict.HURTS if broken else verdict,
        lost=lost,
        unit="seeds",
        by_seed=by_seed,
        p=student_p(lost) if enough else None,
    )


def _together(found: list[Tried]) -> list[Tried]:
    """The correction needs all that were tested."""
    harms = corrected({at: one.harm for at, one in enumerate(found) if one.harm is not None})
    return [replace(one, harm=harms.get(at)) for at, one in enumerate(found)]


def healthy_runs(folder: Path) -> list[dict[str, Any]]:
    """What the looks say of each study's script as it is."""
    return [
        {"diagnosis": row["diagnosis"], "peers": peers.get(UNCHANGED_RUN, {})}
        for study in sorted(file.parent for file in folder.rglob(STUDY_FILE))
        for peers in [{row["run"]: row["said"] for row in rows_in(study / PEERS_FILE)}]
        for row in rows_in(study / SEEDS_FILE)
        if row["mutation"] is None and "diagnosis" in row
    ]
