"""Imports real GRPO logs and shows their first and last reward, raw and as imported.

    python benchmarks/grpo_logs.py [FOLDER]

The raw rewards are read with `json` alone, past the importers. The share counts metric names that
the alias table knows, be it for a column or only for `metrics`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from flatline.trace import Trace
from flatline.trace.importers import open_log

DEFAULT = "../shared/data/grpo_logs"


def raw_rewards(path: Path) -> list[float]:
    text = path.read_text(encoding="utf-8")
    data: Any = (
        [json.loads(line) for line in text.splitlines() if line.strip()]
        if path.suffix == ".jsonl"
        else json.loads(text)
    )
    rows = data["log_history"] if isinstance(data, dict) else data
    return [row["reward"] for row in rows if "reward" in row]


def recognised(trace: Trace) -> str:
    total = len(trace.metric_names)
    return f"{total - len(trace.run['unrecognised'])}/{total}"


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT)
    wrong = 0
    print(
        f"{'file':<46}{'rows':>5}{'raw first':>11}{'raw last':>11}{'first':>11}{'last':>11}  known"
    )
    for path in sorted(folder.iterdir()):
        trace, raw = open_log(path), raw_rewards(path)
        found = trace.steps["reward"].tolist()
        wrong += found != raw
        ends = "".join(f"{value:>11.5f}" for value in (raw[0], raw[-1], found[0], found[-1]))
        print(f"{path.name:<46}{len(trace.steps):>5}{ends}  {recognised(trace)}")
        if trace.run["unrecognised"]:
            print(f"    not known: {', '.join(trace.run['unrecognised'])}")
    print(f"files whose rewards differ anywhere: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
