"""Two other tools on the same runs: what they are asked, and what their answers mean.

Each runs in an environment of its own, as a process with a time limit and without our environment
variables. An answer that cannot be read is a failure and not silence. `MEANS` says which
hypotheses a finding counts for; why is in the records (evidence).
"""

import json
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from bench import rlprobe_feeder
from bench.logs import log_lines, recording_lines, write_lines
from flatline.text import shortened, visible
from flatline.trace import Trace

SECONDS = 120
"""A peer that has not answered by then has failed on the run."""
MOST_BYTES = 10_000_000
"""Longest answer of a peer that is read."""

RLPROBE = {
    "KL_BLOWUP": "H03 H06 H09 H10 H11 H23 H24",
    "ENTROPY_COLLAPSE": "H21 H24",
    "REWARD_HACK_LENGTH": "H05",
    "FORMAT_GAMING": "H05 H39",
    "CLIP_SATURATION": "H06 H17 H21 H23 H24",
    "DEGENERATE_GROUPS": "H21 H32 H33 H39",
    "ADV_COLLAPSE": "H01 H05 H32 H39",
    "VALUE_DIVERGENCE": "",
    "GRAD_PATHOLOGY": "H24 H26",
    "TRUNCATION_STARVE": "H02 H04 H10",
    "REPETITION_SPIRAL": "H02 H21 H24",
    "REWARD_STD_DEATH": "H05 H32 H39",
    "REF_POLICY_DRIFT_ASYMMETRY": "H03 H06 H09 H10 H11",
    "THROUGHPUT_ROT": "",
}
RLDOCTOR = {
    "advantage_collapse": "H21 H32 H33 H39",
    "entropy_collapse": "H05 H21 H24",
    "reward_hacking": "H05 H08 H39",
    "length_pathology": "H02 H04 H05 H10",
    "clip_saturation": "H06 H17 H21 H23 H24",
    "kl_drift": "H03 H06 H09 H10 H11 H23 H24 H26",
    "gradient_pathology": "H01 H05 H06 H24 H26 H32",
    "reward_composition": "H05 H39",
    "plateau": "H05 H06 H24 H26 H32 H39 H44",
}
MEANS = {name: frozenset(codes.split()) for name, codes in (RLPROBE | RLDOCTOR).items()}
"""Finding of a peer -> every hypothesis that it counts for, read generously."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What one peer says about one run."""

    version: str = ""
    """Of the peer."""
    alarms: tuple[str, ...] = ()
    """Warnings and worse, worst first, by the peer's own names."""
    means: tuple[str, ...] = ()
    """Hypotheses that they count for."""
    failure: str = ""
    """Why there is no answer."""

    def __str__(self) -> str:
        return f"FAILED: {self.failure}" if self.failure else ", ".join(self.alarms) or "nothing"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ask(peer: str, python: str, trace: Trace) -> Opinion:
    """A peer's opinion, or how it failed: a run that it cannot read must not end all others."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return ASK[peer](python, trace, Path(scratch))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        return Opinion(failure=shown(f"{type(error).__name__}: {error}"))


def ask_rlprobe(python: str, trace: Trace, scratch: Path) -> Opinion:
    source, target = scratch / "recording.jsonl", scratch / "recording"
    write_lines(source, recording_lines(trace))
    call(python, [rlprobe_feeder.__file__, str(source), str(target)])
    start = "from rlprobe.cli import app; app()"
    # It ends with 1 when a finding is critical.
    answer = call(python, ["-c", start, "doctor", str(target), "--json"], fine=(0, 1))
    return judged((f["signature_id"], f["severity"]) for f in json.loads(answer))


def ask_rldoctor(python: str, trace: Trace, scratch: Path) -> Opinion:
    log = scratch / "log.jsonl"
    write_lines(log, log_lines(trace))
    answer = call(python, ["-m", "rl_doctor.cli", "diagnose", str(log), "--format", "json"])
    return judged((f["detector"], f["severity"]) for f in json.loads(answer)["findings"])


ASK: dict[str, Callable[[str, Trace, Path], Opinion]] = {
    "rlprobe": ask_rlprobe,
    "rldoctor": ask_rldoctor,
}
"""Every peer there is."""


def judged(findings: Iterable[tuple[Any, Any]]) -> Opinion:
    """A peer's findings (name, severity) as an opinion; notes and skipped checks are no alarms."""
    levels: dict[str, list[str]] = defaultdict(list)
    for name, severity in findings:
        levels[str(severity).lower()].append(str(name))
    alarms = [name for level in ("critical", "warning", "warn") for name in levels[level]]
    return Opinion(
        alarms=tuple(shown(name) for name in alarms),
        means=tuple(sorted({code for name in alarms for code in MEANS.get(name, ())})),
    )


def call(python: str, arguments: Sequence[str], fine: Sequence[int] = (0,)) -> str:
    """What a peer's program prints. It gets no more of our environment than it needs."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        done = subprocess.run(
            [python, "-I", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env={"PATH": os.defpath, "OMP_NUM_THREADS": "1"},
            timeout=SECONDS,
            check=False,
        )
        if done.returncode not in fine:
            raise ValueError(f"ended with {done.returncode}: {_read(errors)[-300:]}")
        return _read(out)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"printed more than {MOST_BYTES} bytes")
    return data.decode("utf-8", "replace")


def version_of(peer: str, python: str) -> str:
    """The installed version; raises as `call` does where there is none."""
    code = f"import importlib.metadata; print(importlib.metadata.version({peer!r}))"
    return shown(call(python, ["-c", code]))


def shown(text: str) -> str:
    """A peer's text as one cell of a table."""
    return visible(shortened(" ".join(text.split()), limit=160)).replace("|", "\\|")
