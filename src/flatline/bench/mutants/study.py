"""A folder of tried mutants of one script; the same command goes on where it stopped.

FOLDER/
  study.json       what was asked for, and the commit that it was first run on
  mutants.jsonl    one line a mutant: what it does, and what the checkup says
  seeds.jsonl      one line a whole training: a mutant, or nothing changed, and a seed
  traces/          of each mutant's first seed, for other tools
  log.txt          all that the scripts printed
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flatline.bench.mutants.difference import Effect
from flatline.bench.mutants.draw import Split, drawn
from flatline.bench.mutants.sites import Mutation
from flatline.bench.versions import versions_of
from flatline.errors import ConfigError
from flatline.files import json_in, write_atomically

STUDY_FILE, MUTANTS_FILE, SEEDS_FILE = "study.json", "mutants.jsonl", "seeds.jsonl"
LOG_FILE, TRACES = "log.txt", "traces"
UNCHANGED = (Effect.SAME, Effect.LOG)
LEARNS_OTHERWISE = (Effect.CHANGES, Effect.SCALE)
"""What is trained whole, to see whether it hurts."""

Row = dict[str, Any]
Change = tuple[str | int, ...]
"""Where a change stands and what it is; the same in one release."""
AGAIN = "again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is changed, which changes, and what is asked about each."""

    folder: Path
    script: Path
    modules: tuple[str, ...]
    """Dotted names, or the path of the script itself."""
    split: Split
    count: int
    arguments: tuple[str, ...] = ()
    seed: int = 0
    """Of the draw."""
    steps: int = 2
    """That are compared bit for bit."""
    one_in: int = 1
    """Of mutants that change nothing, so many share one checkup."""
    seeds: int = 0
    """Whole trainings of each mutant that learns otherwise."""
    beside: Path | None = None
    """Studies whose mutants were looked at: no change that one of them has tried is drawn again, in
    whatever setting or release it was tried. What is left is divided into its halves anew."""

    only: frozenset[Change] | None = None
    """Changes that were tried before and are tried again, to see what was mended: no test."""

    def to_json(self) -> Row:
        """What decides the results; how many there are may grow."""
        return {
            "script": self.script.name,
            "arguments": list(self.arguments),
            "steps": self.steps,
            "modules": [Path(name).name for name in self.modules],
            "split": self.split.value if self.only is None else AGAIN,
            "seed": self.seed,
            "beside": self.beside and self.beside.name,
            "versions": versions_of(("flatline", "trl", "torch", "transformers", "peft")),
        }

    @property
    def log(self) -> Path:
        return self.folder / LOG_FILE

    def begin(self, commit: str) -> None:
        """Make the folder. Results of other settings are not mixed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / STUDY_FILE
        before = json_in(file) if file.is_file() else {"commit": commit, **self.to_json()}
        if {name: before.get(name) for name in self.to_json()} != self.to_json():
            raise ConfigError(
                f"{self.folder} holds mutants of another study: {file} says {before}.\n"
                "Results of other settings or releases do not add up.\n"
                "Give another folder with `--out`."
            )
        write_atomically(file, [json.dumps(before, indent=2)])
        for name in (MUTANTS_FILE, SEEDS_FILE):  # the next line is appended to a whole one
            write_atomically(self.folder / name, map(json.dumps, rows_in(self.folder / name)))

    def keep(self, name: str, row: Row) -> None:
        """Add a result."""
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def waiting(self, possible: Mapping[str, list[Mutation]]) -> list[Mutation]:
        """Drawn, and not tried yet."""
        looked_at = _texts_in(self.beside) if self.beside else frozenset()
        every = [one for some in possible.values() for one in some if _text(one) not in looked_at]
        done = {_key(row["mutation"]) for row in rows_in(self.folder / MUTANTS_FILE)}
        if self.only is None:
            anew = self.beside is not None
            chosen = drawn(every, self.split, self.count, self.seed, anew=anew)
        else:
            chosen = [one for one in every if change_of(named(one)) in self.only]
        return [one for one in chosen if _key(named(one)) not in done]

    def untrained(self, seed: int) -> list[Mutation | None]:
        """What is not trained whole with this seed yet; `None` is the script as it is."""
        full = {Path(name).name: name for name in self.modules}
        rows = [row for row in rows_in(self.folder / MUTANTS_FILE) if learns_otherwise(row)]
        every: list[Mutation | None] = [None]
        every += [
            Mutation(**{**row["mutation"], "module": full[row["mutation"]["module"]]})
            for row in rows
        ]
        trained = rows_in(self.folder / SEEDS_FILE)
        done = {_key(row["mutation"]) for row in trained if row["seed"] == seed}
        return [one for one in every if _key(named(one) if one else None) not in done]

    def trace(self, mutation: Mutation | None) -> Path:
        return self.folder / TRACES / trace_name(named(mutation) if mutation else None)


@cache
def _texts_in(folder: Path) -> frozenset[tuple[str, ...]]:
    rows = [row for file in sorted(folder.rglob(MUTANTS_FILE)) for row in rows_in(file)]
    return frozenset(_text(Mutation(**row["mutation"])) for row in rows)


def _text(mutation: Mutation) -> tuple[str, ...]:
    """What a change is, wherever its line stands."""
    module = Path(mutation.module).name
    return (module, mutation.function, mutation.before, mutation.after)


def change_of(mutation: Row) -> Change:
    return tuple(mutation[name] for name in ("module", "line", "function", "before", "after"))


def learns_otherwise(row: Row) -> bool:
    return row["effect"] in LEARNS_OTHERWISE


def named(mutation: Mutation) -> Row:
    """A mutation as it is kept: without the folders of this machine."""
    return {**mutation.to_json(), "module": Path(mutation.module).name}


def trace_name(mutation: Row | None) -> str:
    return f"{mutation['module']}-{mutation['number']}" if mutation else "unchanged"


def rows_in(file: Path) -> list[Row]:
    """What was kept. A last line that a killed process left half does not count."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _key(mutation: Row | None) -> tuple[str, int] | None:
    return (mutation["module"], mutation["number"]) if mutation else None
