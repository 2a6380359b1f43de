"""Where the time of a checkup goes: by stage, by measurement and by probe, with counts.

    python benchmarks/checkup.py [--model FOLDER] [--datasets FILE] [--bf16] [--config run.toml]

A play is one call of the engine. Its time on a GPU is that of its steps, one after the other,
however many episodes it has; `fed` passes read prompts and tool output. `scored` are the trainer's
own passes over a batch. `saved` is the time that goes into keeping the trainer as it was.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# ruff: noqa: E402  # the clock starts before the imports, which are a part of a checkup
START = time.perf_counter()

import torch
from accelerate import Accelerator
from transformers.utils import logging

from flatline.cli.text import visible
from flatline.config import RunConfig, load_config
from flatline.diagnosis.checkup import checkup
from flatline.live import subject
from flatline.rollout import engine, table
from flatline.rollout.weights import WeightCopy
from flatline.training.run import check_all
from flatline.training.trainer import Trainer, build

COUNTED = ("plays", "steps", "fed", "scored", "backward", "copies")
NONE = "(between)"


class Meter:
    """Seconds and counts, for each of the measurements of a `Subject`."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.saved: Counter[str] = Counter()
        self.counts: dict[str, Counter[str]] = {}
        self._now = NONE

    def count(self, what: str) -> None:
        self.counts.setdefault(self._now, Counter())[what] += 1

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        outer, self._now, start = self._now, name, clock()
        try:
            yield
        finally:
            self.seconds[name] += clock() - start
            self._now = outer

    def listen(self) -> None:
        """Wrap what is worth counting."""
        counted(engine.Engine, "play", lambda *_, **__: self.count("plays"))
        counted(WeightCopy, "_copy_from", lambda *_, **__: self.count("copies"))
        counted(
            Trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: self.count("scored")
        )
        counted(Accelerator, "backward", lambda *_, **__: self.count("backward"))
        counted(table, "forward", self._forward)
        self._time_measurements()
        self._time_saving()

    def _forward(self, _model: Any, _cache: Any, ids_BT: torch.Tensor, *_: Any, **__: Any) -> None:
        self.count("steps" if ids_BT.shape[1] == 1 else "fed")

    def _time_measurements(self) -> None:
        take = subject.Subject._take

        def timed(one: Any, name: Any, *given: Any) -> Any:
            if name in one._taken:
                return take(one, name, *given)
            with self.measuring(name if isinstance(name, str) else " ".join(map(str, name))):
                return take(one, name, *given)

        subject.Subject._take = timed  # type: ignore[method-assign]

    def _time_saving(self) -> None:
        keep = subject.Subject.untouched

        @contextmanager
        def timed(one: Any) -> Iterator[None]:
            start, inside = clock(), 0.0
            with keep(one):
                begun = time.perf_counter()
                try:
                    yield
                finally:
                    inside = clock() - begun
            self.saved[self._now] += clock() - start - inside

        subject.Subject.untouched = timed  # type: ignore[method-assign]


def counted(owner: Any, name: str, heard: Callable[..., None]) -> None:
    inner = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        heard(*args, **kwargs)
        return inner(*args, **kwargs)

    setattr(owner, name, call)


def clock() -> float:
    """Now, with nothing of the past still to be done on the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Stages:
    """Seconds from one call to the next."""

    def __init__(self, last: float) -> None:
        self._last = last
        self.rows: list[tuple[str, float]] = []

    def end(self, name: str) -> None:
        now = clock()
        self.rows.append((name, now - self._last))
        self._last = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="the run to look at (TOML)")
    parser.add_argument("--model")
    parser.add_argument("--datasets")
    parser.add_argument("--fault")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    chosen = {"model": args.model, "datasets": args.datasets, "fault": args.fault}
    changes: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    changes |= {"bf16": True} if args.bf16 else {}
    changes |= {"eval_limit": 0} if args.datasets else {}
    config = load_config(args.config, **changes) if args.config else RunConfig(**changes)
    logging.disable_progress_bar()
    look(config)


def look(config: RunConfig) -> None:
    stages, probes, meter = Stages(START), [], Meter()
    stages.end("imports")
    built = build(config)
    check_all(built)
    stages.end("loading and building")
    meter.listen()
    before = Stages(clock())

    def on_probe(hypothesis: Any) -> None:
        before.end(probes[-1] if probes else "first batch")
        probes.append(f"{hypothesis.id} {hypothesis.name}")

    report = checkup(built, on_probe=on_probe)
    before.end(probes[-1])
    stages.end("checkup")
    show(stages, before, meter)
    print("\n" + "; ".join(f"{f.hypothesis} {f.level.value}" for f in report.findings))
    for finding in report.alarms:
        print(f"{finding.hypothesis}: {visible(finding.text)}")


def show(stages: Stages, probes: Stages, meter: Meter) -> None:
    print("| stage | seconds |\n|---|---|")
    for name, seconds in stages.rows:
        print(f"| {name} | {seconds:.1f} |")
    print(f"| all | {sum(seconds for _, seconds in stages.rows):.1f} |")
    print(f"\n| measurement | seconds | saved | {' | '.join(COUNTED)} |")
    print("|---" * (3 + len(COUNTED)) + "|")
    for name in sorted(meter.seconds, key=lambda name: -meter.seconds[name]):
        show_row(name, meter.seconds[name], meter.saved[name], meter.counts.get(name, Counter()))
    counts = sum(meter.counts.values(), Counter())
    show_row("all", sum(meter.seconds.values()), sum(meter.saved.values()), counts)
    print("\n| probe | seconds |\n|---|---|")
    for name, seconds in probes.rows:
        print(f"| {name} | {seconds:.2f} |")


def show_row(name: str, seconds: float, saved: float, counts: Counter[str]) -> None:
    cells = " | ".join(str(counts[what]) for what in COUNTED)
    print(f"| {name} | {seconds:.2f} | {saved:.2f} | {cells} |")


if __name__ == "__main__":
    main()
