"""verl's own trainer on the lab policy, recorded and diagnosed; its engine under a checkup.

    make verl && python benchmarks/verl_live.py

Healthy, and with each of three planted defects: a loss mask without the end token, a rollout server
that never takes new weights, and one that draws at another temperature than it was asked for. verl
0.9.1 runs as it is, through its own registries (`tests/verl_lab`).
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from flatline.diagnosis.report import Report, diagnose
from flatline.hypotheses.base import ALARMS, Level

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.verl_lab.launch import FAULTS, NAMED, PACKAGES, launch, look

KEPT = (1, 2)
"""Steps whose rollouts become fixtures."""


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--packages", type=Path, default=PACKAGES, help="where `make verl` put it")
    ask.add_argument("--out", type=Path, default=Path("runs/verl"))
    ask.add_argument("--steps", type=int, default=12)
    ask.add_argument("--only", nargs="*", default=["healthy", *filter(None, FAULTS)])
    ask.add_argument("--keep", type=Path, help="copy what verl wrote in the healthy run there")
    given = ask.parse_args()
    out, packages = given.out.resolve(), given.packages.resolve()
    for name in given.only:
        fault = "" if name == "healthy" else name
        trace = launch(out / name, steps=given.steps, fault=fault, packages=packages)
        report = diagnose(str(trace), correct="correct")
        print(f"{name:12} live     {_of_report(report)}", flush=True)
        found = look(out / f"{name}-engine", fault=fault, packages=packages)
        print(f"{name:12} checkup  {_of_checkup(found)}", flush=True)
        if given.keep and not fault:
            keep(out / name, given.keep)
    print(f"expected first: { {name: sorted(codes) for name, codes in NAMED.items() if name} }")


def _of_report(report: Report) -> str:
    ruled_out = sum(one.level is Level.OK for one in report.findings)
    named = "; ".join(f"{one.hypothesis} {one.text}" for one in report.alarms) or "silent"
    return f"{ruled_out} of {len(report.findings)} ruled out; {named}"


def _of_checkup(found: dict[str, Any]) -> str:
    levels = [one["level"] for one in found["findings"]]
    alarms = [one for one in found["findings"] if one["level"] in {level.value for level in ALARMS}]
    named = "; ".join(f"{one['hypothesis']} {one['text']}" for one in alarms) or "silent"
    bits = "same bits" if found["same_bits"] else "OTHER BITS"
    seconds = found["seconds"]["checkup"]
    return f"{levels.count('ok')} of {len(levels)} ruled out in {seconds:.0f} s, {bits}; {named}"


def keep(run: Path, where: Path) -> None:
    """The log, the rollouts of a few steps, and the recording."""
    (where / "rollouts").mkdir(parents=True, exist_ok=True)
    shutil.copy(run / "metrics.jsonl", where)
    for step in KEPT:
        shutil.copy(run / "rollouts" / f"{step}.jsonl", where / "rollouts")
    beside = shutil.ignore_patterns(".lock*", "diagnosis.json")
    shutil.copytree(run / "trace", where / "trace", ignore=beside, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
