"""Two other tools beside flatline on the same recorded runs: who says what, and is it the cause?

    pip install rlprobe==0.1.0        each into an environment of its own
    pip install rldoctor==0.2.0
    python benchmarks/peers.py --runs runs/faults runs/healthy \\
        --rlprobe ENV/bin/python --rldoctor ENV/bin/python

Runs come from `benchmarks/faults.py` and `benchmarks/false_alarms.py`. An alarm is a warning or
worse. Prints a table of all runs, totals, and what each finding of a peer counts for.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import summary
from peers_ask import ASK, RLDOCTOR, RLPROBE, Opinion, ask, log_lines, shown, version, write_lines

from flatline.diagnosis import diagnose
from flatline.faults import find
from flatline.stats import cluster_mean
from flatline.trace import Trace
from flatline.trace.importers import open_log

FLATLINE, LOG_ONLY = "flatline", "flatline, log only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run with all that was said about it."""

    name: str
    """Folder of the run."""
    fault: str | None
    """What was planted; None in a healthy run."""
    causes: frozenset[str]
    """Hypotheses that the planted faults belong to."""
    counts: bool
    """A fault that cost held-out reward, or a healthy setup that learnt."""
    said: Mapping[str, Opinion]
    """Opinion of every tool."""


def main() -> int:
    args = _arguments()
    peers = {name: python for name in ASK if (python := getattr(args, name))}
    pythons = {FLATLINE: sys.executable, **peers}
    versions = [f"{name} {version(name, python)}" for name, python in pythons.items()]
    rows = []
    for run in folders(args.runs):
        rows.append(look(run, peers))
        print(f"{len(rows)} {shown(run.name)}", file=sys.stderr, flush=True)
    tools = [FLATLINE, LOG_ONLY, *peers]
    print(", ".join(versions), end="\n\n")
    print_runs(rows, tools)
    print_totals(rows, tools)
    print_skipped(rows, peers)
    print_meanings()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=Path, nargs="+", required=True, help="runs, or folders of runs"
    )
    for name in ASK:
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"a Python that has {name}")
    return parser.parse_args()


def folders(paths: Iterable[Path]) -> list[Path]:
    """Every recorded run among the paths and right below them."""
    candidates = [
        run
        for path in paths
        for run in ([path] if (path / "run.json").is_file() else sorted(path.iterdir()))
    ]
    return [run for run in candidates if (run / "run.json").is_file()]


def look(run: Path, peers: Mapping[str, str]) -> Row:
    trace = Trace.open(run)
    fault = trace.run.get("fault")
    with tempfile.TemporaryDirectory() as scratch:
        said = {FLATLINE: ours(trace), LOG_ONLY: ours(log_alone(trace, Path(scratch)))}
        said |= {peer: ask(peer, python, trace, Path(scratch)) for peer, python in peers.items()}
    return Row(
        name=run.name,
        fault=fault,
        causes=frozenset(planted.fault.hypothesis for planted in find(fault)),
        counts=hurts(run, trace) if fault else learnt(run),
        said=said,
    )


def ours(trace: Trace) -> Opinion:
    causes = [finding.hypothesis for finding in diagnose(trace).causes]
    return Opinion(alarms=tuple(causes), means=frozenset(causes[:1]))


def log_alone(trace: Trace, scratch: Path) -> Trace:
    """The run as flatline sees it in the very file that rldoctor gets."""
    path = scratch / "ours.jsonl"
    write_lines(path, log_lines(trace))
    return open_log(path)


def hurts(run: Path, trace: Trace) -> bool:
    """Whether held-out reward was lost against the healthy run of the same seed beside it."""
    found = summary(run.parent, str(trace.run["fault"]), [int(trace.run["seed"])])
    return bool(found and found["lost"] and found["lost"]["low"] > 0)


def learnt(run: Path) -> bool:
    """As in benchmarks/false_alarms.py: a setup that does not learn is no healthy one."""
    result = run / "result.json"
    facts = json.loads(result.read_text()) if result.is_file() else {}
    return "gain" not in facts or facts["gain"]["low"] > 0


# -- the tables -------------------------------------------------------------------------------


def print_runs(rows: Sequence[Row], tools: Sequence[str]) -> None:
    print(f"| run | planted | {' | '.join(tools)} |")
    print("|---" * (2 + len(tools)) + "|")
    for row in rows:
        cells = [_cell(row, row.said[tool]) for tool in tools]
        print(f"| {shown(row.name)} | {_planted(row)} | {' | '.join(cells)} |")
    print("\nBold counts for what was planted.")


def _planted(row: Row) -> str:
    if row.fault is None:
        return "nothing" if row.counts else "nothing (did not learn: left out)"
    return " ".join(sorted(row.causes)) + ("" if row.counts else " (costs no reward)")


def _cell(row: Row, said: Opinion) -> str:
    return f"**{said}**" if named(row, said) else str(said)


def named(row: Row, said: Opinion) -> bool:
    return bool(row.causes & said.means)


def alarmed(row: Row, said: Opinion) -> bool:
    return bool(said.alarms)


def failed(row: Row, said: Opinion) -> bool:
    return bool(said.failure)


def print_totals(rows: Sequence[Row], tools: Sequence[str]) -> None:
    healthy = [row for row in rows if row.fault is None and row.counts]
    faulty = [row for row in rows if row.fault is not None]
    hurting = [row for row in faulty if row.counts]
    lines: list[tuple[str, Sequence[Row], Callable[[Row, Opinion], bool]]] = [
        ("healthy runs: alarm", healthy, alarmed),
        ("faulty runs: alarm", faulty, alarmed),
        ("faulty runs: points at the cause", faulty, named),
        ("faults that cost reward: alarm", hurting, alarmed),
        ("faults that cost reward: points at the cause", hurting, named),
        ("all runs: gave no answer", rows, failed),
    ]
    print(f"\n| | {' | '.join(tools)} |")
    print("|---" * (1 + len(tools)) + "|")
    for title, some, holds in lines:
        cells = [share(some, [holds(row, row.said[tool]) for row in some]) for tool in tools]
        print(f"| {title} | {' | '.join(cells)} |")


def share(rows: Sequence[Row], values: Sequence[bool]) -> str:
    """Count with its 95 % interval; all seeds of a fault are one unit."""
    units = [row.fault or row.name for row in rows]
    if len(set(units)) < 2:
        return f"{sum(values)} of {len(values)}"
    rate = cluster_mean([float(value) for value in values], units)
    return f"{sum(values)} of {len(values)} ({rate.low:.0%} to {rate.high:.0%})"


def print_skipped(rows: Sequence[Row], peers: Iterable[str]) -> None:
    for peer in peers:
        reasons = Counter(reason for row in rows for reason in row.said[peer].skipped)
        for reason, count in reasons.most_common(10):
            print(f"\n{peer} left out in {count} of {len(rows)} runs: {reason}")


def print_meanings() -> None:
    print("\n| finding | counts for |\n|---|---|")
    for name, codes in (RLPROBE | RLDOCTOR).items():
        print(f"| {name} | {codes or 'nothing'} |")


if __name__ == "__main__":
    sys.exit(main())
