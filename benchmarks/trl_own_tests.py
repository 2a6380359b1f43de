"""TRL's own tests of GRPO, with flatline inside.

    python benchmarks/trl_own_tests.py TESTS [-k EXPRESSION]

TESTS is the folder `tests` of a checkout of TRL, of a version near the installed one; none of it is
part of flatline. Its `test_grpo_trainer.py` runs three times: as it is, with `flatline.attach` on
every trainer that it trains, and with a `flatline.checkup` of it before. A test that passes as it
is must pass with flatline, and train the same weights bit by bit.

Nothing is downloaded: models and data of the hub are stood in for (`trl_stand_ins.py`), and a test
that needs another one, such as a vision model, fails as it is and is counted as not run.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODES = ("as it is", "attach", "checkup")
Line = dict[str, Any]


def main() -> None:
    tests, *options = sys.argv[1:]
    found = {mode: run(Path(tests).resolve(), mode, options) for mode in MODES}
    plain = _outcomes(found["as it is"])
    kept = [name for name, outcome in plain.items() if outcome == "passed"]
    counted = ", ".join(f"{n} {outcome}" for outcome, n in Counter(plain.values()).items())
    print(f"{len(plain)} tests without flatline: {counted}.")
    for mode in MODES[1:]:
        _compare(mode, kept, found["as it is"], found[mode])
    for name in sorted(name for name, outcome in plain.items() if outcome == "failed"):
        print(f"not run: {name}: {_reason(found['as it is'], name)}")


def run(tests: Path, mode: str, options: list[str]) -> list[Line]:
    """All that one run of the tests told."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.jsonl"
        told.touch()
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        given |= {"FLATLINE_MODE": mode, "FLATLINE_TOLD": str(told)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "trl_stand_ins"]
        command += ["-p", "no:cacheprovider", str(tests / "test_grpo_trainer.py"), *options]
        env = {**os.environ, **given}
        done = subprocess.run(
            command, cwd=tests.parent, env=env, capture_output=True, text=True, check=False
        )
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        if not lines:
            sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\nNo test could be run.")
        return lines


def _compare(mode: str, kept: list[str], plain: list[Line], found: list[Line]) -> None:
    outcomes = _outcomes(found)
    lost = [name for name in kept if outcomes.get(name) != "passed"]
    before, after = _weights(plain), _weights(found)
    same = sum(after.get(key) == weights for key, weights in before.items())
    print(f"\n## {mode}\n{len(kept) - len(lost)} of {len(kept)} tests are kept.")
    print(f"The weights are the same, bit by bit, after {same} of {len(before)} trainings.")
    for name in lost:
        print(f"lost: {name}: {_reason(found, name)}")
    for kind in ("stopped", "refused", "defect", "fault", "suspect"):
        seen = [(line["finding"], line["test"]) for line in found if line.get("kind") == kind]
        print(f"{kind}: {len(seen)} {_by_finding(seen)}")


def _by_finding(seen: Iterable[tuple[str, str]]) -> str:
    by_code = Counter(finding.split(":")[0] for finding, _ in seen)
    return ", ".join(f"{code} {n}" for code, n in by_code.most_common())


def _outcomes(found: list[Line]) -> dict[str, str]:
    return {line["test"]: line["outcome"] for line in found if "outcome" in line}


def _weights(found: list[Line]) -> dict[tuple[str, int], str]:
    return {
        (line["test"], line["training"]): line["weights"] for line in found if "weights" in line
    }


def _reason(found: list[Line], name: str) -> str:
    return next((line["why"] for line in found if line["test"] == name and "why" in line), "")


if __name__ == "__main__":
    main()
