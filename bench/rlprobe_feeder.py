"""Runs in the Python of rlprobe, where there is no flatline: writes a run with its own recorder.

    ENV/bin/python rlprobe_feeder.py RECORDING.jsonl RUN_DIRECTORY

`bench.peers` calls it. The first line holds the settings, every other one a step.
"""

import json
import sys
import types
from importlib import import_module
from pathlib import Path


def main(source: str, target: str) -> None:
    # rlprobe's map of TRL's names lives beside a callback; nothing else of transformers is used.
    sys.modules["transformers"] = types.ModuleType("transformers")
    sys.modules["transformers"].TrainerCallback = object  # type: ignore[attr-defined]
    trl, recorder = import_module("rlprobe.integrations.trl"), import_module("rlprobe.recorder")
    reader = import_module("rlprobe.storage").RunReader
    head, *steps = map(json.loads, Path(source).read_text(encoding="utf-8").splitlines())
    config = {"algorithm": "grpo", "trainer_config": head["config"], "capture_env": False}
    with recorder.Recorder(target, **config) as to:
        for line in steps:
            to.log_step(line["step"], **trl._map_logs(line["logs"]), **line["more"])
            to.log_samples(line["step"], line["samples"], select=False)
    # The recorder drops what it cannot take and says so only in a file.
    kept = len(reader(target).steps()), len(reader(target).samples())
    given = len(steps), sum(len(line["samples"]) for line in steps)
    if kept != given:
        sys.exit(f"rlprobe kept {kept} of {given} steps and samples")


if __name__ == "__main__":
    main(*sys.argv[1:])
