"""Looking at a setup without training it: the checkup and the ladder, each made once and kept.

RUNS/<digest of the arm>-checkup.json
RUNS/<digest of the arm>-ladder.json
"""

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatline.config import toml_of
from flatline.errors import ConfigError
from flatline.experiment import Arm
from flatline.experiment.outcome import Sight
from flatline.experiment.runs import FLATLINE
from flatline.files import json_in, write_atomically
from flatline.hypotheses.base import ALARMS, Finding


def checkup_of(arm: Arm, runs: Path, say: Callable[[str], None]) -> dict[str, Sight]:
    """What a checkup of the arm's setup says, by hypothesis. A command cannot be looked at."""
    if arm.config is None:
        return {}

    def look() -> dict[str, Any]:
        say(f"A checkup of the setup {arm.name}")
        return _checkup(arm, runs)

    values = kept(runs / f"{arm.digest}-checkup.json", look)
    return sights_of(values["findings"])


def sights_of(findings: Sequence[Mapping[str, Any]]) -> dict[str, Sight]:
    """The findings of a checkup, by hypothesis. A probe sees the mechanism itself."""
    return {
        one["hypothesis"]: Sight(
            level=one["level"], text=one["text"], proven=one["level"] in ALARMS
        )
        for one in findings
    }


def ladder_of(arm: Arm, runs: Path, climb: Callable[[], Finding]) -> dict[str, Any]:
    """What the ladder of positive controls says, as JSON."""
    return kept(runs / f"{arm.digest}-ladder.json", lambda: climb().to_json())


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is in the file, or what is made now and kept there."""
    try:
        return dict(json_in(path))
    except (OSError, ValueError):
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [json.dumps(made, indent=2)])
        return made


def _checkup(arm: Arm, runs: Path) -> dict[str, Any]:
    assert arm.config is not None
    runs.mkdir(parents=True, exist_ok=True)
    config = runs / f"{arm.digest}-checkup.toml"
    write_atomically(config, [toml_of(arm.config.to_dict())])
    typed = ["checkup", arm.config.task, "--config", str(config)]
    # Findings are no failure here: whatever exits otherwise than with 0 has not looked.
    command = [*FLATLINE, *typed, "--fail-on", "never", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        end = "\n".join(f"  {line}" for line in done.stderr.strip().splitlines()[-8:])
        raise ConfigError(
            f"The checkup of this setup ended with exit code {done.returncode}:\n{end}\n"
            "Without it nobody knows whether the mechanism is there, so nothing more is trained; "
            "runs that have finished are kept.\n"
            f"Look at it with `flatline {shlex.join(typed)}`, then type the same command again."
        )
    return dict(json.loads(done.stdout))
