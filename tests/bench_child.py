"""Stands in for `flatline` in tests of the benchmark: `bench cell FOLDER`, as its cell says."""

import json
import os
import sys
import time
from pathlib import Path

folder = Path(sys.argv[3])
plan = json.loads((folder / "plan.json").read_text())
(folder / "started").write_text(os.environ["OMP_NUM_THREADS"])
with (folder.parent / "order").open("a") as order:
    order.write(plan["name"] + "\n")
if plan["name"].startswith("crash"):
    sys.exit("out of everything")
if plan["name"].startswith("slow"):
    time.sleep(60)
result = {"version": 1, "cell": plan, "training": {}, "checkup": {}, "seconds": 1.0}
(folder / "cell.json").write_text(json.dumps(result))
