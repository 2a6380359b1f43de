"""What the replays say about recorded runs: is any planted fault ruled out by its own replay?

    python benchmarks/replays.py runs/bench/cells/*/run

Prints one line a hypothesis: the agreement where its own fault is planted, in runs with another
fault, and in healthy ones, and how often the replay decides.
"""

import sys
from pathlib import Path

import numpy as np

from flatline.errors import FlatlineError, NotRecorded
from flatline.faults import belonging
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import HasReplay, Hypothesis, Replay
from flatline.trace import Trace


def main(folders: list[str]) -> None:
    traces = [trace for folder in folders if (trace := _open(Path(folder))) is not None]
    print("| hypothesis | runs | agreement | decided |\n|---|---|---|---|")
    for hypothesis in HYPOTHESES:
        if isinstance(hypothesis, HasReplay):
            for kind in ("its own fault", "another fault", "healthy"):
                _print(hypothesis, kind, [t for t in traces if _kind(hypothesis, t) == kind])


def _print(hypothesis: Hypothesis, kind: str, traces: list[Trace]) -> None:
    found = [replay for trace in traces if (replay := _replay(hypothesis, trace)) is not None]
    values = [one.agreement.value for one in found if np.isfinite(one.agreement.value)]
    seen = f"{min(values):.2f} to {max(values):.2f}" if values else "nothing to compare"
    decided = sum(one.decided for one in found)
    print(f"| {hypothesis.id} | {len(found)}, {kind} | {seen} | {decided} |")


def _kind(hypothesis: Hypothesis, trace: Trace) -> str:
    fault = trace.run.get("fault")
    if not fault:
        return "healthy"
    return "its own fault" if belonging(str(fault), hypothesis.id) else "another fault"


def _replay(hypothesis: Hypothesis, trace: Trace) -> Replay | None:
    assert isinstance(hypothesis, HasReplay)
    try:
        return hypothesis.replay(trace)
    except NotRecorded:
        return None


def _open(folder: Path) -> Trace | None:
    try:
        return Trace.open(folder)
    except FlatlineError:
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
