"""Proof on a script that does not know flatline: the table of docs/investigate.md.

    python benchmarks/scripts/prove.py FOLDER [FAULT ...]

For each fault of the script's own code its cause and two look-alikes, and the healthy script. About
three minutes of one core for each fault; what was run before in FOLDER is not run again.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from prepare import prepare

SCRIPT = Path(__file__).parent / "sums.py"
ASKED = {
    "mask": ("H09", "H10", "H24"),
    "reading": ("H39", "H33", "H54"),
    "old-log-probs": ("H54", "H09", "H53"),
    "healthy": ("H09", "H39", "H54", "H53"),
}
"""Of each fault the cause first, then what it could be mistaken for."""


def verdicts(folder: Path, fault: str) -> list[dict[str, Any]]:
    planted = [] if fault == "healthy" else ["--fault", fault]
    command = [
        *(sys.executable, "-m", "flatline", "investigate", *ASKED[fault], "--json"),
        *("--runs", str(folder / fault), "--script", str(SCRIPT), "--"),
        *(str(folder / "model"), str(folder / "sums.jsonl"), *planted),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return list(json.loads(done.stdout))


def row(fault: str, verdict: dict[str, Any], seconds: float) -> str:
    effect = verdict["effect"]
    moved = "nothing trained"
    if effect["n"]:
        ends = f"[{effect['low']:+.3f}, {effect['high']:+.3f}]"
        moved = f"{effect['value']:+.3f} {ends}, {effect['n']} seeds"
    ruling = f"{verdict['verdict']} ({verdict['confidence']})"
    return f"| {fault} | {verdict['hypothesis']} | {ruling} | {moved} | {seconds:.0f} |"


def main() -> None:
    folder, *faults = sys.argv[1:]
    if not (Path(folder) / "model").exists():
        prepare(Path(folder))
    print("| fault of the script | hypothesis | verdict (confidence) | effect | CPU-seconds |")
    print("|---|---|---|---|---|")
    for fault in faults or ASKED:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = verdicts(Path(folder), fault)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        for verdict in found:
            print(row(fault, verdict, spent), flush=True)


if __name__ == "__main__":
    main()
