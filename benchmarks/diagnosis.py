"""Is each planted fault found, and is its own hypothesis named first?

    python benchmarks/faults.py --out runs/faults        trains healthy and every fault (hours)
    python benchmarks/diagnosis.py --runs runs/faults    checkup and diagnose of all, the table

For every fault: the rank of its hypothesis in a checkup of the untrained setup, its rank in the
diagnosis of seed 0 after 10, 20 and 40 steps, and the held-out reward that it costs. A rank is 1
for the first alarm; `-` means that it raised none. A fault that does not hurt is listed, but not
counted.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults import HEALTHY, all_names, folder, summary

from flatline.diagnosis import diagnose
from flatline.faults import PRESETS, find
from flatline.files import write_atomically
from flatline.trace import Trace

AFTER = (10, 20, 40)
"""Steps after which the run is diagnosed."""
FIRST = {name: find(name)[-1].fault.hypothesis for name in PRESETS}
"""What a preset must name first: its worst defect, which is planted last."""


def main() -> int:
    args = _arguments()
    names = [name for name in (HEALTHY, *all_names()) if (args.runs / f"{name}-s0").is_dir()]
    with ThreadPoolExecutor(args.jobs) as pool:
        looks = pool.map(lambda name: checkup(args.runs, name), names)
        checkups = dict(zip(names, looks, strict=True))
    rows = [row(args.runs, name, checkups[name], args.seeds) for name in names]
    print_table(rows)
    write_atomically(args.runs / "diagnosis.json", [json.dumps(rows, indent=2)])
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/faults"))
    parser.add_argument("--seeds", default=(0, 1, 2), type=lambda t: [int(x) for x in t.split(",")])
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args()


def checkup(runs: Path, name: str) -> dict[str, Any] | None:
    """The checkup of the setup as it is before training; kept, because it takes half a minute."""
    kept = runs / f"{name}-s0" / "checkup.json"
    if not kept.is_file():
        fault = [] if name == HEALTHY else ["--fault", name]
        flags = [
            "--kl-beta",
            "0.04",
            "--max-steps",
            "40",
            "--output-dir",
            str(kept.parent / "look"),
        ]
        code = "from flatline.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "checkup", "musique", *flags, *fault, "--json"],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        if done.returncode > 1:
            print(f"{name}: {done.stderr[-500:]}", file=sys.stderr)
            return None
        write_atomically(kept, [done.stdout])
    return dict(json.loads(kept.read_text()))


def row(runs: Path, name: str, look: dict[str, Any] | None, seeds: list[int]) -> dict[str, Any]:
    trace = Trace.open(folder(runs, name, 0))
    reports = {step: diagnose(trace.until(step)).to_json() for step in AFTER}
    wanted = set() if name == HEALTHY else {fault.hypothesis for fault, _ in find(name)}
    wanted = {FIRST[name]} if name in FIRST else wanted
    found = summary(runs, name, seeds)
    return {
        "run": name,
        "hypothesis": sorted(wanted),
        "lost": found and found["lost"],
        "seeds": found["seeds"] if found else [],
        "checkup": _alarms(look),
        "checkup_rank": _rank(look, wanted),
        "diagnose": {step: _alarms(report) for step, report in reports.items()},
        "diagnose_rank": {step: _rank(report, wanted) for step, report in reports.items()},
    }


def _alarms(report: dict[str, Any] | None) -> list[str]:
    findings = report["findings"] if report else []
    return [f["hypothesis"] for f in findings if f["level"] in ("fault", "suspect")]


def _rank(report: dict[str, Any] | None, wanted: set[str]) -> int | None:
    places = [i for i, code in enumerate(_alarms(report), 1) if code in wanted]
    return min(places, default=None)


def print_table(rows: list[dict[str, Any]]) -> None:
    after = " | ".join(f"diagnose, {step} steps" for step in AFTER)
    print(f"| fault | hypothesis | reward lost (95 % interval) | seeds | checkup | {after} |")
    print("|---" * (5 + len(AFTER)) + "|")
    for one in rows:
        lost = one["lost"]
        shown = f"{lost['value']:+.3f} [{lost['low']:+.3f}, {lost['high']:+.3f}]" if lost else ""
        ranks = [_cell(one["checkup_rank"], one["checkup"])]
        ranks += [_cell(one["diagnose_rank"][step], one["diagnose"][step]) for step in AFTER]
        code = " ".join(one["hypothesis"])
        print(f"| {one['run']} | {code} | {shown} | {len(one['seeds'])} | {' | '.join(ranks)} |")
    hurting = [one for one in rows if one["lost"] and one["lost"]["low"] > 0]
    first = [one for one in hurting if 1 in (one["checkup_rank"], *one["diagnose_rank"].values())]
    print(f"\n{len(first)} of {len(hurting)} faults that hurt are named first by one of the two.")
    for one in hurting:
        if one not in first:
            print(f"missed: {one['run']}")


def _cell(rank: int | None, alarms: list[str]) -> str:
    others = f" ({alarms[0]} first)" if alarms and rank != 1 else ""
    return f"{rank or '-'}{others}"


if __name__ == "__main__":
    sys.exit(main())
