"""Work that starts trainings: an investigation, a benchmark, and one training by itself."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from processes import Lost
from works import ANY, READY, Journal, Record, Work, begun, check_hand, flatline

from flatline.trace import Trace

STAND_IN = Path(__file__).parent / "stand_in.py"
"""Stands for a training: a process that needs no import and leaves a trace made before."""


class Investigate(Work):
    name, trials = "investigate", 5

    def prepare(self, folder: Path) -> None:
        begun(folder)

    def do(self, folder: Path) -> None:
        print(READY)
        with redirect_stdout(sys.stderr):
            self.investigate(folder, expected=ANY)

    def check(self, folder: Path, claims: Sequence[str]) -> None:
        check_hand(folder)
        for outcome in folder.glob("runs/*/outcome.json"):
            json.loads(outcome.read_text())

    def go_on(self, folder: Path, claims: Sequence[str]) -> None:
        finished = {p.parent.name for n in ("ended", "outcome.json") for p in _runs(folder, n)}
        before = self.starts(folder)
        self.investigate(folder)
        twice = [n for n in finished if self.starts(folder).count(n) > before.count(n)]
        if twice:
            raise Lost(f"finished runs were made again: {twice}")
        self.check(folder, claims)
        kept = next((folder / "journal" / "experimental-results").glob("*.json"))
        found = json.loads(kept.read_text())["verdict"]
        if found != self.verdict:
            raise Lost(f"the verdict is {found}, undisturbed it is {self.verdict}")

    def left(self, folder: Path) -> list[str]:
        return [path.parent.name for path in _runs(folder, "outcome.json")]

    def beside(self, folder: Path) -> None:
        """Runs of the one that hangs are waited for, so only its journal is asked."""
        flatline("journal", "status", str(folder / "journal"))

    def rehearse(self, folder: Path) -> None:
        """Traces for the stand-ins, and the verdict of an investigation that nothing struck."""
        from tests.experiment_child import record

        for beta in (0.04, 0.0):
            for seed in range(3):
                made = {"beta": beta, "seed": seed, "gain": 0.3, "steps": 6, "pause": 0.0}
                record(_Namespace(out=folder / "traces" / f"{beta}-{seed}", **made))
        (folder / "undisturbed").mkdir()
        self.prepare(folder / "undisturbed")
        self.traces = folder / "traces"
        with redirect_stdout(sys.stderr):
            self.investigate(folder / "undisturbed")
        results = folder / "undisturbed" / "journal" / "experimental-results"
        print(json.dumps(json.loads(next(results.glob("*.json")).read_text())["verdict"]))

    def investigate(self, folder: Path, *, jobs: int = 2, **how: Sequence[int]) -> None:
        """The command, as it is typed."""
        traces = f"{sys.executable} -IS {STAND_IN} {self.traces}"
        command = f"{traces} {{kl_beta}} {{seed}} {{run_dir}}"
        options = ["--arms", "kl_beta=0.04,0.0", "--seeds", "3", "--jobs", str(jobs)]
        options += ["--journal", str(folder / "journal"), "--runs", str(folder / "runs"), "--json"]
        flatline("investigate", "H09", "--command", command, *options, **how)

    def starts(self, folder: Path) -> list[str]:
        return [n for p in folder.glob("runs/.starts-*") for n in p.read_text().split()]

    verdict: dict[str, object]
    """Of an investigation that nothing strikes."""
    traces: Path
    """What the stand-ins copy."""


class Bench(Work):
    name, trials = "bench", 4

    def do(self, folder: Path) -> None:
        print(READY)
        self._run(folder)

    def check(self, folder: Path, claims: Sequence[str]) -> None:
        for name in claims:
            file = folder / "bench" / "cells" / name / "cell.json"
            if json.loads(file.read_text())["cell"]["name"] != name:
                raise Lost(f"the cell {name}")

    def go_on(self, folder: Path, claims: Sequence[str]) -> None:
        made = [folder / "bench" / "cells" / name / "cell.json" for name in claims]
        before = [file.stat().st_mtime_ns for file in made]
        self._run(folder)
        if before != [file.stat().st_mtime_ns for file in made]:
            raise Lost("a finished cell was made again")
        self.check(folder, [f"cell-{i}" for i in range(8)])

    def beside(self, folder: Path) -> None:
        """A benchmark that hangs holds nothing: its cells can be read."""
        self.check(folder, [p.parent.name for p in folder.glob("bench/cells/*/cell.json")])

    def _run(self, folder: Path) -> None:
        from bench.plan import Cell, Kind
        from bench.pool import How, run_cells, unfinished

        cells = [Cell(name=f"cell-{i}", kind=Kind.FAULT, changes={"seed": i}) for i in range(8)]
        how = How(jobs=2, command=[sys.executable, "-IS", str(STAND_IN)])
        out = folder / "bench"
        out.mkdir(exist_ok=True)
        run_cells(unfinished(cells, out), out, how, lambda cell, _: print(cell.name))


class Train(Work):
    name, trials, patience = "train", 2, 200.0
    steps = 6
    flags = (
        *("--datasets", "lab,,train[:24]", "--eval-datasets", "lab,,validation[:4]"),
        *("--batch-size", "8", "--num-generations", "4", "--max-new-tokens", "32"),
        *("--max-steps", str(steps), "--save-steps", "1", "--eval-steps", "1"),
    )

    def do(self, folder: Path) -> None:
        from transformers import TrainerCallback

        from flatline.training import run

        said = sys.stdout

        class Claim(TrainerCallback):
            """What came before the beginning of a step is complete."""

            def on_step_begin(self, args, state, control, **kwargs):
                print(state.global_step or READY, file=said)

        add = run._add_callbacks

        def add_and_claim(built):
            built.trainer.add_callback(Claim())
            return add(built)

        run._add_callbacks = add_and_claim
        # The last to be told of an event must be the one that claims.
        attach = run.attach

        def attach_first(trainer, where):
            made = attach(trainer, where)
            trainer.callback_handler.callbacks.sort(key=lambda one: isinstance(one, Claim))
            return made

        run.attach = attach_first
        with redirect_stdout(sys.stderr):
            self._train(folder, expected=ANY)

    def check(self, folder: Path, claims: Sequence[str]) -> None:
        trace, done = Trace.open(folder / "run"), {int(line) for line in claims}
        for table, found in (
            ("steps", trace.steps["step"]),
            ("rollouts", trace.rollouts["step"]),
            ("tokens", trace.token_steps),
        ):
            if done - set(np.asarray(found).astype(int).tolist()):
                raise Lost(f"{table} of a completed step of {sorted(done)}")

    def go_on(self, folder: Path, claims: Sequence[str]) -> None:
        flatline("show", str(folder / "run"))
        there = any((folder / "run").glob("checkpoint-*/trainer_state.json"))
        self._train(folder, *(("--resume-from-checkpoint", "last") if there else ()))
        self.check(folder, [str(step) for step in range(1, self.steps + 1)])
        if not (folder / "run" / "model").is_dir():
            raise Lost("the model")

    def beside(self, folder: Path) -> None:
        flatline("show", str(folder / "run"))
        # The folder is taken, unless the training was over when it was struck.
        over = Trace.open(folder / "run").run.get("ended")
        self._train(folder, expected=ANY if over else (2,))

    def _train(self, folder: Path, *more: str, **how: Sequence[int]) -> None:
        place = ("--output-dir", str(folder / "run"))
        flatline("train", "musique", *place, *self.flags, *more, **how)


WORKS: tuple[type[Work], ...] = (Record, Journal, Investigate, Bench, Train)


class _Namespace:
    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


def _runs(folder: Path, name: str) -> list[Path]:
    return list(folder.glob(f"runs/*/{name}"))
