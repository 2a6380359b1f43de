"""Proof on scripts that do not know flatline.

    python benchmarks/scripts/prove.py run OUT [--only tools-mask,tools-healthy]
    python benchmarks/scripts/prove.py report [OUT]

For each fault of a script's own code its cause and two look-alikes, and the healthy script. What
has finished in OUT is not run again, and cases may run side by side in it. `report` keeps what OUT
has in docs/scripts/results.json, if it is given, and prints the table.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prepare import prepare

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / "docs" / "scripts" / "results.json"
SCRIPTS = {
    "sums": ("sums.py", "model", "sums.jsonl"),
    "tools": ("tool_sums.py", "tool-model", "tool-sums.jsonl"),
}
"""Name -> the script, and what it is given."""
HEALTHY = "healthy"
ABOVE = re.compile(r"[^\s'\"]*/(?=benchmarks/scripts/|given/)")
"""Where the checkout and OUT lie; nobody else has them there."""
ASKED = {
    "sums-mask": ("H09", "H10", "H24"),
    "sums-reading": ("H39", "H33", "H54"),
    "sums-old-log-probs": ("H54", "H09", "H53"),
    f"sums-{HEALTHY}": ("H09", "H39", "H54", "H53"),
    "tools-mask": ("H09", "H51", "H41"),
    "tools-reading": ("H39", "H33", "H41"),
    "tools-old-log-probs": ("H54", "H09", "H51"),
    f"tools-{HEALTHY}": ("H09", "H39", "H54", "H51"),
}
"""Of each case the cause first, then what it could be mistaken for."""
WORDS = {
    "sums-mask": "the prompt is hidden by the attention mask",
    "sums-reading": "the reward reads one digit of an answer",
    "sums-old-log-probs": "old log-probs are those of the batch before",
    f"sums-{HEALTHY}": "none",
    "tools-mask": "what the tool said is hidden by the attention mask",
    "tools-reading": "the reward reads one digit of an answer",
    "tools-old-log-probs": "old log-probs are those of the batch before",
    f"tools-{HEALTHY}": "none",
}


def investigated(out: Path, case: str) -> dict[str, Any]:
    """One case: what `flatline investigate --script` says, and what that took."""
    script, model, data = SCRIPTS[case.partition("-")[0]]
    fault = case.partition("-")[2]
    given = out / "given"
    command = [
        *(sys.executable, "-m", "flatline", "investigate", *ASKED[case], "--json"),
        *("--runs", str(out / case), "--script", str(HERE / script), "--"),
        *(str(given / model), str(given / data)),
        *([] if fault == HEALTHY else ["--fault", fault]),
    ]
    begun, before = time.monotonic(), _cpu()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{case} ended with exit code {done.returncode}.")
    return {
        "case": case,
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "cpu_seconds": round(_cpu() - before),
        "verdicts": json.loads(done.stdout),
    }


def _cpu() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def run(out: Path, cases: Iterable[str]) -> None:
    if not (out / "given").exists():
        prepare(out / "given")
    for case in cases:
        kept = out / f"{case}.json"
        if not kept.exists():
            kept.write_text(json.dumps(investigated(out, case), indent=1), encoding="utf-8")
        print("\n".join(rows(json.loads(kept.read_text(encoding="utf-8")))), flush=True)


def rows(found: dict[str, Any]) -> list[str]:
    """Lines of the table for one case."""
    script, fault = found["case"].partition("-")[0], WORDS[found["case"]]
    took = f"{found['minutes']:.0f} min, {found['cpu_seconds']} CPU-s"
    lines = []
    for verdict in found["verdicts"]:
        effect, moved = verdict["effect"], "nothing trained"
        if effect["n"]:
            ends = f"[{effect['low']:+.3f}, {effect['high']:+.3f}]"
            moved = f"{effect['value']:+.3f} {ends}, {effect['n']} seeds"
        ruling = f"{verdict['verdict']} ({verdict['confidence']})"
        first = f"{SCRIPTS[script][0]} | {fault}" if not lines else "|"
        lines.append(
            f"| {first} | {verdict['hypothesis']} | {ruling} | {moved} | {'' if lines else took} |"
        )
    return lines


def table() -> str:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    head = [
        "| script | fault of its own | hypothesis | verdict (confidence) | effect | took |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(line for found in kept for line in rows(found))])


def keep(out: Path) -> None:
    """The cases that OUT has, in place of those that were kept."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else []
    by = {found["case"]: found for found in kept}
    for case in ASKED:
        if (out / f"{case}.json").exists():
            text = (out / f"{case}.json").read_text(encoding="utf-8")
            by[case] = json.loads(ABOVE.sub("", text))
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    ordered = [by[case] for case in ASKED if case in by]
    KEPT.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("out", type=Path)
    runs.add_argument("--only", help="cases, with commas", default=",".join(ASKED))
    told = commands.add_parser("report")
    told.add_argument("out", type=Path, nargs="?")
    asked = parser.parse_args()
    if asked.command == "run":
        run(asked.out.resolve(), asked.only.split(","))
        return
    if asked.out:
        keep(asked.out)
    print(table())


if __name__ == "__main__":
    main()
