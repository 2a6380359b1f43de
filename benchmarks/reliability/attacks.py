"""Is anything of a damaged trace lost, or changed, without a word?

    python benchmarks/reliability/attacks.py [--flips 10000] [--every 1] [--jobs 2] [--seed 0]

Records a small run twice, once as a killed process leaves it (streams) and once closed (parquet),
and damages one file at a time: cut off at every byte, a bit flipped, emptied, deleted, a line
repeated, lost or swapped with the next. After each, the trace is read and compared with what was
recorded. What came of it is one of

    equal        everything is there, and it may be said that something is damaged
    said         values are missing, and a warning or an error of the reader says so
    SILENT       values are missing or `run.json` says something else, and nothing is said
    CHANGED      a row that was never recorded, a row twice, or another value in its place
    CRASH        an error that is not meant for a user

The last three must not happen. `diagnose`, `show`, `query` and `report` are also run on a sample.
`--every 7` cuts at every seventh byte only.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from typer.testing import CliRunner

from flatline.cli import app
from flatline.errors import TraceError
from flatline.heldout import FILE as HELD_OUT
from flatline.heldout import HeldOutScore, lines_of, read_scores
from flatline.trace import Trace, files
from flatline.trace.files import FileName
from flatline.trace.schema import TABLES
from flatline.trace.writer import Writer

STEPS, ROLLOUTS = 3, 4
KEYS = {
    "steps": ("step",),
    "rollouts": ("step", "rollout"),
    "tokens": ("step", "rollout"),
    "weights": ("step", "name"),
    "vocabulary": ("id",),
}
OUTCOMES = ("equal", "said", "SILENT", "CHANGED", "CRASH")
WHOLE_EVERY = 1000
"""One attack in so many is also given to the commands."""


class Attack(NamedTuple):
    """One way to damage one file."""

    kind: str
    file: str
    at: int
    """A byte, a bit or a line."""


class Read(NamedTuple):
    """What a reader gets from a trace."""

    rows: dict[str, list[dict[str, Any]]]
    facts: dict[str, Any]
    held_out: list[dict[str, Any]]
    warnings: frozenset[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flips", type=int, default=10_000, help="bits flipped, in both traces")
    parser.add_argument("--every", type=int, default=1, help="cut off at every so many bytes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counted, bad = attack_all(options.flips, options.every, options.jobs, options.seed)
    for line in table(counted):
        print(line)
    for line in bad[:40]:
        print(line)
    return 1 if bad else 0


def attack_all(
    flips: int, every: int, jobs: int, seed: int
) -> tuple[Counter[tuple[str, str, str]], list[str]]:
    """How often each attack on each trace came to what; and the ones that must not happen."""
    counted: Counter[tuple[str, str, str]] = Counter()
    bad = []
    with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(jobs) as pool:
        for state in ("unclosed", "closed"):
            folder = Path(scratch) / state
            record(folder, clean=state == "closed")
            planned = [*attacks(folder, flips // 2, every, random.Random(seed))]
            random.Random(seed).shuffle(planned)
            parts = [planned[number::jobs] for number in range(jobs)]
            for done in pool.map(struck, [folder] * jobs, range(jobs), parts):
                for attack, outcome in done:
                    counted[state, attack.kind, outcome.split(" ")[0]] += 1
                    if outcome not in ("equal", "said"):
                        bad.append(f"{outcome}: {state}, {' '.join(map(str, attack))}")
    return counted, sorted(bad)


def table(counted: Counter[tuple[str, str, str]]) -> list[str]:
    """In Markdown, a line for each kind of attack."""
    lines = [
        "| trace | damage | times | " + " | ".join(OUTCOMES) + " |",
        "|---" * (3 + len(OUTCOMES)) + "|",
    ]
    for state, kind in dict.fromkeys((state, kind) for state, kind, _ in sorted(counted)):
        numbers = [counted[state, kind, outcome] for outcome in OUTCOMES]
        cells = [state, kind, *(f"{number:,}" for number in (sum(numbers), *numbers))]
        lines.append(f"| {' | '.join(cells)} |")
    total = [sum(n for key, n in counted.items() if key[2] == one) for one in OUTCOMES]
    cells = ["both", "all", *(f"{number:,}" for number in (sum(total), *total))]
    return [*lines, f"| {' | '.join(cells)} |"]


# -- what is attacked -------------------------------------------------------------------------


def record(folder: Path, *, clean: bool) -> None:
    """A small run with rows in every table, and two held-out evaluations."""
    rng = np.random.default_rng(0)
    run = {"source": "recorder", "seed": 0, "settings": {"num_generations": 4, "beta": 0.04}}
    writer = Writer(folder, run=run)
    writer.write("vocabulary", [{"id": at, "text": f" w{at}"} for at in range(8)])
    for step in range(1, STEPS + 1):
        places = [{"step": step, "rank": 0, "rollout": at} for at in range(ROLLOUTS)]
        writer.write("rollouts", [_rollout(rng, place) for place in places])
        writer.write("tokens", [_tokens(rng, place) for place in places])
        writer.write("weights", [{"step": step, "name": "w", "norm": 1.0 + step, "size": 9}])
        row = {"step": step, "reward": float(rng.random()), "kl": 0.01 * step}
        writer.write("steps", [{**row, "metrics": {"loss": 0.5 * step, "entropy": 1.0}}])
        writer.end_step()
    writer.close(clean=clean)
    scores = [
        HeldOutScore(step=step, problems=["a", "b"], rewards=[0.25, 0.5 + step / 8])
        for step in (0, STEPS)
    ]
    (folder / HELD_OUT).write_text("\n".join(lines_of(scores)) + "\n")


def _rollout(rng: np.random.Generator, place: dict[str, int]) -> dict[str, Any]:
    reward = float(rng.random())
    return {
        **place,
        "group": 0,
        "prompt_id": "p1",
        "reward": reward,
        "advantage": reward - 0.5,
        "parts": {"format": 1.0, "exact": reward},
        "finish": "eos",
        "completion_tokens": 4,
        "completion": f"an answer {reward}",
    }


def _tokens(rng: np.random.Generator, place: dict[str, int]) -> dict[str, Any]:
    logp = -rng.random(4).astype(np.float32)
    return {
        **place,
        "prompt_ids": [1, 2],
        "ids": rng.integers(0, 8, 4),
        "author": [1] * 4,
        "trained": [1] * 4,
        "sampler": logp,
        "trainer": logp,
    }


# -- attacks ----------------------------------------------------------------------------------


def attacks(folder: Path, flips: int, every: int, chance: random.Random) -> Iterator[Attack]:
    """Every one of them, for every file; bits are spread evenly over the files."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    sizes = {name: (folder / name).stat().st_size for name in names}
    for name in names:
        yield from (Attack("cut off", name, at) for at in range(1, sizes[name], every))
        yield Attack("emptied", name, 0)
        if name != HELD_OUT:  # no part of the trace: its means are in `steps`
            yield Attack("deleted", name, 0)
        if name.endswith((".crc", ".jsonl")):
            lines = (folder / name).read_bytes().count(b"\n")
            for kind in ("line repeated", "line lost", "lines swapped"):
                yield from (Attack(kind, name, at) for at in range(lines))
            yield Attack("all lines repeated often", name, 0)
    for _ in range(flips):
        name = chance.choice(names)
        yield Attack("bit flipped", name, chance.randrange(8 * sizes[name]))


def damaged(attack: Attack, data: bytes) -> bytes | None:
    """The file after it; None where it is deleted."""
    lines = data.splitlines(keepends=True)
    at = attack.at
    match attack.kind:
        case "cut off":
            return data[:at]
        case "emptied":
            return b""
        case "deleted":
            return None
        case "bit flipped":
            flipped = bytearray(data)
            flipped[at // 8] ^= 1 << at % 8
            return bytes(flipped)
        case "line repeated":
            return b"".join([*lines[:at], lines[at], *lines[at:]])
        case "line lost":
            return b"".join([*lines[:at], *lines[at + 1 :]])
        case "lines swapped":
            return b"".join([*lines[:at], *reversed(lines[at : at + 2]), *lines[at + 2 :]])
        case "all lines repeated often":
            return data * (10_000 if len(data) < 1000 else 1000)
    raise AssertionError(attack.kind)


def struck(folder: Path, number: int, planned: list[Attack]) -> list[tuple[Attack, str]]:
    """What came of each attack, on a copy of the trace."""
    files.LINE_WAIT = 0.0  # nobody is writing
    copy = folder.with_name(f"{folder.name}-{number}")
    shutil.copytree(folder, copy)
    whole = read(copy)
    found = []
    for count, attack in enumerate(planned):
        path = copy / attack.file
        data = path.read_bytes()
        changed = damaged(attack, data)
        path.unlink()
        if changed is not None:
            path.write_bytes(changed)
        found.append((attack, "equal" if changed == data else outcome(copy, whole, attack.file)))
        if count % WHOLE_EVERY == 0 and (problem := commands_fail(copy)):
            found.append((attack, problem))
        path.write_bytes(data)
    return found


# -- what comes of it -------------------------------------------------------------------------


def read(folder: Path, tables: Iterable[str] = tuple(TABLES)) -> Read:
    trace = Trace.open(folder)
    rows = {name: trace.tables[name].to_table().to_pylist() for name in tables}
    try:
        held_out, told = [asdict(score) for score in read_scores(folder)], []
    except TraceError as error:
        held_out, told = [], [str(error)]
    return Read(rows, trace.run, held_out, frozenset([*trace.warnings, *told]))


def outcome(folder: Path, whole: Read, file: str) -> str:
    """Of the tables, the one that the file belongs to is read: no other can have changed."""
    name = FileName.parse(file)
    try:
        found = read(folder, [name.table] if name else [])
    except TraceError:
        return "said"
    except Exception as error:
        return f"CRASH {type(error).__name__}: {error}"
    said = bool(found.warnings - whole.warnings)
    states = {compared(table, rows, whole.rows[table]) for table, rows in found.rows.items()}
    if "CHANGED" in states:
        return "CHANGED"
    same_facts = all(found.facts.get(name) == value for name, value in whole.facts.items())
    if states <= {"equal"} and same_facts and found.held_out == whole.held_out:
        return "equal"
    return "said" if said else "SILENT"


def compared(name: str, found: list[dict[str, Any]], whole: list[dict[str, Any]]) -> str:
    """Whether rows are those that were recorded, some of them, or others."""
    if repr(found) == repr(whole):
        return "equal"
    keys = [tuple(row[key] for key in KEYS[name]) for row in found]
    whole_keys = [key for key in keys if None not in key]
    recorded = all(any(_is_part(row, known) for known in whole) for row in found)
    return "missing" if recorded and len(set(whole_keys)) == len(whole_keys) else "CHANGED"


def _is_part(row: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether it is this row, perhaps without some of its values."""
    return all(value is None or repr(value) == repr(known[column]) for column, value in row.items())


def commands_fail(folder: Path) -> str:
    """What a command did that it must not do; nothing where all went well."""
    page = folder / ".page.html"
    for command in (
        ["diagnose"],
        ["show"],
        ["show", "--step", "2", "--rollout", "1"],
        ["query", "SELECT * FROM rollouts"],
        ["report", "-o", str(page)],
    ):
        name, *options = command
        done = CliRunner().invoke(app, [name, str(folder), *options])
        (folder / "diagnosis.json").unlink(missing_ok=True)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            return f"CRASH of {' '.join(command)}: {done.exception!r}"
        if name == "diagnose" and done.exit_code not in (0, 1, 2):
            return f"CRASH of diagnose: exit code {done.exit_code}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
