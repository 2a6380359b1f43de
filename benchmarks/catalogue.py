"""Every sign on recorded runs: what alarms on healthy ones, and which cause comes first on others.

    python benchmarks/catalogue.py --healthy runs/healthy/* --faulty runs/faults/*-s0

A healthy run in which anything alarms makes the exit code 1. A faulty one is diagnosed by all
hypotheses and by those of `--before` (codes joined with commas): where the first cause differs, an
added hypothesis has pushed itself in front, and the exit code is 1 as well. A
folder without a trace is bad input: 2.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flatline.diagnosis import Report, diagnose
from flatline.errors import FlatlineError
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Level
from flatline.stats import cluster_mean
from flatline.trace import Trace

BEFORE = tuple(f"H{n:02}" for n in (*range(12), 17, 21, 23, 24, 26, 32, 33, 39, 44))
"""The hypotheses that were there before the rest of the catalogue."""


def main() -> int:
    """Look at every run; 1 where a healthy one alarms or a first cause has changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--healthy", nargs="*", type=Path, default=[])
    parser.add_argument("--faulty", nargs="*", type=Path, default=[])
    parser.add_argument("--before", type=lambda text: text.split(","), default=BEFORE)
    parser.add_argument("--notes", action="store_true", help="show notes too")
    args = parser.parse_args()
    alarmed = [run for run in args.healthy if _is_alarmed(run, notes=args.notes)]
    if args.healthy:
        _print_share(len(alarmed), len(args.healthy))
    changed = [run for run in args.faulty if _has_another_cause(run, args.before)]
    if args.faulty:
        print(f"First cause changed: {len(changed)} of {len(args.faulty)} faulty runs.")
    return 1 if alarmed or changed else 0


def _is_alarmed(run: Path, *, notes: bool) -> bool:
    start = time.perf_counter()
    report = diagnose(Trace.open(run))
    seconds = time.perf_counter() - start
    told = f"{report.tested} of {len(report.findings)} told, {seconds:.1f} s"
    print(f"{run.name:28} {'ALARM' if report.alarms else 'silent'}  ({told})")
    shown = [*report.alarms, *(_noted(report) if notes else ()), *_defects(report)]
    for finding in shown:
        print(f"    {finding.level.value} {finding.hypothesis} {finding.name}: {finding.text}")
    return bool(report.alarms) or bool(_defects(report))


def _noted(report: Report) -> list:
    return [finding for finding in report.findings if finding.level is Level.NOTE]


def _defects(report: Report) -> list:
    """Hypotheses that tripped over the run: a defect of flatline, not of the run."""
    return [finding for finding in report.findings if "Could not be looked at" in finding.text]


def _has_another_cause(run: Path, before: Sequence[str]) -> bool:
    trace = Trace.open(run)
    old = diagnose(trace, hypotheses=[one for one in HYPOTHESES if one.id in before])
    new = diagnose(trace)
    first, second = (_first(report) for report in (old, new))
    added = [f.hypothesis for f in new.alarms if f.hypothesis not in before]
    also = f"; new alarms: {', '.join(added)}" if added else ""
    mark = "" if first == second else f"  CHANGED from {first}"
    print(f"{run.name:28} {second}{mark}{also}")
    for finding in _defects(new):
        print(f"    {finding.hypothesis}: {finding.text}")
    return first != second or bool(_defects(new))


def _first(report: Report) -> str:
    return report.causes[0].hypothesis if report.causes else "none"


def _print_share(alarmed: int, runs: int) -> None:
    share = cluster_mean([1.0] * alarmed + [0.0] * (runs - alarmed), list(range(runs)))
    ends = f"95 % interval of the share: {share.low:.0%} to {share.high:.0%}"
    print(f"Healthy runs that alarm: {alarmed} of {runs}; {ends}.")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FlatlineError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
