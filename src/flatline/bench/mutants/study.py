"""A folder of tried mutants of one script; the same command goes on where it stopped."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from flatline import __version__
from flatline.bench.mutants import nursery, trial
from flatline.bench.mutants.draw import Split, drawn
from flatline.bench.mutants.planting import source_of
from flatline.bench.mutants.sites import Mutation, mutations
from flatline.bench.mutants.trial import Effect, Setup
from flatline.errors import ConfigError
from flatline.files import json_in, write_atomically

STUDY_FILE, RESULTS_FILE, LOG_FILE = "study.json", "mutants.jsonl", "log.txt"
PATIENCE, LEAST_PATIENCE = 10.0, 120.0
"""A mutant hangs after so many times the reference's seconds, and not before so many seconds."""
LOOKED_AT = (Effect.CHANGES, Effect.LOG, Effect.SAME)
"""What stops or hangs needs no checkup: the user knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is changed, and which changes."""

    setup: Setup
    modules: tuple[str, ...]
    """Dotted names, or the path of the script itself."""
    split: Split
    count: int
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """What decides the results; how many there are may grow."""
        return {
            "script": self.setup.script.name,
            "arguments": list(self.setup.arguments),
            "steps": self.setup.steps,
            "modules": [Path(name).name for name in self.modules],
            "split": self.split.value,
            "seed": self.seed,
            "versions": {
                "flatline": __version__,
                **{name: version(name) for name in ("trl", "torch", "peft")},
            },
        }


class _Job(NamedTuple):
    what: str
    mutation: Mutation | None


Row = dict[str, Any]


def run(
    study: Study,
    folder: Path,
    *,
    jobs: int,
    minutes: float | None,
    on_done: Callable[[Row], None],
) -> int:
    """Try what was not tried. Returns how many mutants are left for want of time."""
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_another(study, folder)
    nursery.warm()
    reference = _reference(study, folder, jobs)
    chosen = drawn(_possible(study, reference), study.split, study.count, study.seed)
    before = _whole_results(folder)
    done = {(row["mutation"]["module"], row["mutation"]["number"]) for row in before}
    waiting = [one for one in chosen if (Path(one.module).name, one.number) not in done]
    until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    tried = 0
    with (folder / RESULTS_FILE).open("a", encoding="utf-8") as file:
        for row in _tried(study, waiting, reference, folder, jobs, until):
            file.write(json.dumps(row) + "\n")
            file.flush()
            tried += 1
            on_done(row)
    return len(waiting) - tried


def results(folder: Path) -> list[Row]:
    """What was tried. A last line that a killed process left half does not count."""
    file = folder / RESULTS_FILE
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _whole_results(folder: Path) -> list[Row]:
    """What was tried, and a file that ends with a whole line: the next one is appended to it."""
    found = results(folder)
    write_atomically(folder / RESULTS_FILE, (json.dumps(row) for row in found))
    return found


def _refuse_another(study: Study, folder: Path) -> None:
    """Results of other settings are not mixed."""
    file = folder / STUDY_FILE
    if file.is_file() and json_in(file) != study.to_json():
        raise ConfigError(
            f"{folder} holds mutants of another study: {file} says {json_in(file)}.\n"
            "Results of other settings or releases do not add up.\n"
            "Give another folder with `--out`."
        )
    write_atomically(file, [json.dumps(study.to_json(), indent=2)])


def _reference(study: Study, folder: Path, jobs: int) -> Row:
    """The script without a change, twice: what is not the same twice cannot show a change."""
    asked = deque([_Job("train", None), _Job("train", None), _Job("lines", None)])
    found: dict[str, list[Row]] = {"train": [], "lines": []}
    work, log = _work(study), folder / LOG_FILE
    for job, row in nursery.each(asked, work, at_once=jobs, limit=3600.0, log=log):
        if row.get("error"):
            raise ConfigError(
                f"{study.setup.script} does not train as it is: {row['error']} "
                f"({row.get('at', 'no line known')}).\n"
                "A change can only be judged against a training that works.\n"
                f"Its output is in {log}."
            )
        found[job.what].append(row)
    first, second = found["train"]
    if trial.effect_of(first, second) is not Effect.SAME:
        raise ConfigError(
            f"{study.setup.script} trains otherwise each time, with the same seed.\n"
            "Then no change can be told from chance.\n"
            "Set its seeds (`seed=` of the trainer's arguments), and train on a CPU."
        )
    return {**first, "lines": found["lines"][0]["lines"]}


def _possible(study: Study, reference: Row) -> list[Mutation]:
    """Every change of every line that the training runs."""
    return [
        one
        for module in study.modules
        for one in mutations(
            source_of(module).read_text(encoding="utf-8"), module, reference["lines"][module]
        )
    ]


def _tried(
    study: Study, waiting: list[Mutation], reference: Row, folder: Path, jobs: int, until: float
) -> Iterator[Row]:
    asked = deque(_Job("train", one) for one in waiting)
    limit = max(LEAST_PATIENCE, PATIENCE * reference["seconds"])
    effects: dict[Mutation, Row] = {}
    work, log = _work(study), folder / LOG_FILE
    for job, found in nursery.each(asked, work, at_once=jobs, limit=limit, log=log):
        if job.mutation is None:
            continue
        if job.what == "train":
            effect = trial.effect_of(reference, found)
            effects[job.mutation] = _row(job.mutation, effect, found)
            if effect in LOOKED_AT:
                asked.appendleft(_Job("checkup", job.mutation))
                continue
        row = effects.pop(job.mutation)
        yield {**row, "checkup": found} if job.what == "checkup" else row
        if time.monotonic() > until:
            for left in [one for one in asked if one.what == "train"]:
                asked.remove(left)


def _row(mutation: Mutation, effect: Effect, found: Row) -> Row:
    told: Row = {name: found[name] for name in ("error", "at", "seconds") if name in found}
    named = {**mutation.to_json(), "module": Path(mutation.module).name}
    return {"mutation": named, "effect": effect.value, **told}


def _work(study: Study) -> Callable[[_Job], Row]:
    def work(job: _Job) -> Row:
        if job.what == "lines":
            return {"lines": trial.executed(study.setup, study.modules)}
        if job.what == "train":
            return trial.trained(study.setup, job.mutation)
        return trial.checked(study.setup, job.mutation)

    return work
