"""What of flatline works under older versions of TRL.

    python benchmarks/compatibility.py [0.24.0 1.8.0 ...]

Each version goes into a folder of its own with the transformers of its time and is put in front of
the installed packages, so that torch is shared. A tiny random model is trained there, for real
(`compatibility_child.py`). Prints two Markdown tables: what works, and what `attach` records.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OLD_HTTP = "httpx==0.28.1 httpcore==1.0.9"
PINS = {
    "0.24.0": "transformers==4.57.1 tokenizers==0.22.1 huggingface_hub==0.36.0 datasets==4.3.0 "
    f"peft==0.17.1 accelerate==1.11.0 {OLD_HTTP}",
    "0.29.0": "transformers==4.57.6 tokenizers==0.22.1 huggingface_hub==0.36.0 datasets==4.3.0 "
    f"peft==0.18.0 accelerate==1.12.0 {OLD_HTTP}",
    "1.0.0": "transformers==5.4.0 tokenizers==0.22.2 huggingface_hub==1.8.0 datasets==4.7.0 "
    f"jmespath==1.0.1 {OLD_HTTP}",
    "1.8.0": "transformers==5.13.0 tokenizers==0.22.2 huggingface_hub==1.8.0 datasets==4.7.0 "
    f"jmespath==1.0.1 {OLD_HTTP}",
    "1.16.0": "",
}
"""What is installed besides TRL; the last is what the project itself uses."""
FEATURES = ("attach", "callback", "checkup", "tools", "environment_factory")
RECORDED = ("weights the same", "rollouts", "tokens", "trainer log-probs", "attention",
            "reference", "rewards", "steps", "weights", "detached")  # fmt: skip


def main() -> None:
    found = {version: check(version) for version in sys.argv[1:] or PINS}
    print(_table(found, FEATURES, "works"), _table(found, RECORDED, "recorded"), sep="\n")


def check(version: str) -> dict[str, Any]:
    """Run the child under one version."""
    folder = Path(tempfile.gettempdir()) / f"flatline-trl-{version}"
    if PINS[version] and not (folder / "trl").is_dir():
        wanted = [f"trl=={version}", *PINS[version].split()]
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([sys.executable, *install, *wanted], check=True, capture_output=True)
    here = [str(folder)] if PINS[version] else []
    path = os.pathsep.join([*here, str(ROOT)])
    quiet = {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "compatibility_child.py")],
        env={**os.environ, **quiet, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or "recording stopped" in done.stderr:
        print(f"-- {version}\n{done.stderr[-3000:]}", file=sys.stderr)
    found: dict[str, Any] = json.loads(lines[-1]) if lines and not done.returncode else {}
    for name, trouble in found.get("troubles", {}).items():
        print(f"-- {version} {name}\n{trouble}", file=sys.stderr)
    return found


def _table(found: dict[str, dict[str, Any]], columns: tuple[str, ...], part: str) -> str:
    lines = [f"| TRL | transformers | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for version, cells in found.items():
        row = [cells.get(part, {}).get(name, "-") for name in columns]
        lines.append(f"| {version} | {cells.get('transformers', '-')} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
