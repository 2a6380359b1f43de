"""A journal of 200 hypotheses and 5,000 experiments: how long its commands take.

    python benchmarks/journal.py [--hypotheses 200] [--experiments 5000]

Each command is a fresh process, start and imports included; the goal is `status` and `next` in
under a second. The CPU time is told apart, because a shared machine makes the clock run longer.
Both read the front matter of the hypothesis files and no experiment; `check` and `resolve` read
every result, and one `record` rewrites the log.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from flatline.config import RunConfig
from flatline.journal import Journal, begin, board, record
from flatline.journal.markers import appended, filled
from flatline.journal.new import add
from flatline.journal.pages import log_entry, page, results_text
from flatline.journal.results import digest, stored

COMMANDS = ("status", "next", "check", "resolve")
RULINGS = ("validated", "partial", "invalidated", "inconclusive")
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hypotheses", type=int, default=200)
    parser.add_argument("--experiments", type=int, default=5_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        make(path, options.hypotheses, options.experiments)
        files = sum(1 for file in path.rglob("*") if file.is_file())
        print(f"{options.hypotheses} hypotheses, {options.experiments} experiments, {files} files")
        for command in COMMANDS:
            wall, cpu = min(_timed(command, path) for _ in range(REPEATS))
            print(f"{command:<8} {wall:.2f} s ({cpu:.2f} s CPU)")
        wall, cpu = _after_an_edit(path)
        print(f"status   {wall:.2f} s ({cpu:.2f} s CPU) where the table has to be written")
        start = time.perf_counter()
        record(Journal.open(path), *_experiment("one-more", "U001", 0))
        print(f"record   {time.perf_counter() - start:.2f} s, in a running process")


def make(path: Path, hypotheses: int, experiments: int) -> None:
    """A journal as `record` would leave it, without recording one by one."""
    begin(path, RunConfig())
    journal = Journal.open(path)
    blank = add(journal, "blank").read_text()
    log = [(path / "01-experiments-log.md").read_text()]
    own = hypotheses - len(journal.read().entries) + 1
    for i in range(1, own + 1):
        code = f"U{i:03}"
        share = range(experiments * (i - 1) // own, experiments * i // own)
        names = [f"{code.lower()}-{k:04}" for k in share]
        kept = [(name, stored(*_experiment(name, code, i))) for name in names]
        for name, one in kept:
            _write_result(path, name, one)
            entry = log_entry(one, None, date(2026, 1, 1))
            log.append(appended("\n", f"{name}-{digest(one)}", entry))
        text = _judged(blank, code, RULINGS[i % 4], names)
        made = filled(text, "results", results_text(kept)) or text
        (path / "hypotheses" / f"{code.lower()}-x.md").write_text(made)
    (path / "hypotheses" / "u01-blank.md").unlink()
    (path / "01-experiments-log.md").write_text("".join(log))
    board.refresh(journal)


def _judged(blank: str, code: str, ruling: str, names: list[str]) -> str:
    return (
        blank.replace("code: U01", f"code: {code}")
        .replace("status: pending", f"status: {ruling if names else 'pending'}")
        .replace("confidence: null", "confidence: high")
        .replace("experiments: []", f"experiments: [{', '.join(names)}]")
        .replace("related: []", "related: [H03, H09]")
    )


def _write_result(path: Path, name: str, kept: dict[str, Any]) -> None:
    folder = path / "experimental-results"
    (folder / f"{name}.json").write_text(json.dumps(kept, indent=1))
    (folder / f"{name}.md").write_text(page(kept, None))


def _experiment(name: str, code: str, number: int) -> tuple[dict[str, Any], ...]:
    config = RunConfig().to_dict()
    arms = [
        {"name": "as it is", "role": "control", "config": config | {"kl_beta": 0.04}},
        {"name": "mended", "role": "treated", "config": config},
    ]
    runs = [
        {
            "arm": arm["name"],
            "role": arm["role"],
            "seed": seed,
            "status": "finished",
            "before": 0.6,
            "after": 0.7,
            "value": 0.1,
            "seconds": 90,
        }
        for seed in range(3)
        for arm in arms
    ]
    effect = {"value": 0.1, "low": 0.05, "high": 0.15, "n": 3}
    verdict = {
        "hypothesis": code,
        "verdict": RULINGS[number % 4],
        "confidence": "high",
        "effect": effect,
        "smallest_effect": 0.05,
        "reason": "An effect that was measured, and a sentence of the usual length about it.",
        "would_change": "New seeds whose interval reaches 0.",
        "mechanism": {"control": "present", "treated": "absent", "text": "Seen and gone."},
    }
    curves = {
        f"{arm['name']}-{seed}": {"reward": [0.6 + k / 100 for k in range(30)], "heldout": []}
        for seed in range(3)
        for arm in arms
    }
    plan = {"name": name, "hypothesis": code, "outcome": "heldout_reward", "arms": arms}
    return plan, {"runs": runs, "looks": []}, verdict, curves


def _after_an_edit(path: Path) -> tuple[float, float]:
    file = path / "hypotheses" / "h03-kl-divergence.md"
    file.write_text(file.read_text().replace("priority: medium", "priority: low"))
    return _timed("status", path)


def _timed(command: str, path: Path) -> tuple[float, float]:
    start, before = time.perf_counter(), _children()
    subprocess.run(
        [sys.executable, "-c", "from flatline.cli import main; main()", "journal", command, path],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - start, _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
