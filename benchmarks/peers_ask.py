"""What `benchmarks/peers.py` gives to other tools, how it asks them, and what answers mean."""

import json
import math
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from flatline.cli.text import shortened, visible
from flatline.trace import Trace

SECONDS = 120
"""A peer that has not answered by then has failed on the run."""
MOST_BYTES = 10_000_000
"""Longest answer of a peer that is read."""
OURS = ("debug/", "lora/", "time/")
"""Metrics that flatline's trainer adds to TRL's; a peer could take `debug/reward_std` for TRL's."""
FEEDER = Path(__file__).with_name("peers_rlprobe.py")

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
"""Finding of a peer -> every hypothesis that it counts for; docs/peers.md says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What one tool says about one run."""

    alarms: tuple[str, ...] = ()
    """Warnings and worse, worst first, by the tool's own names."""
    means: frozenset[str] = frozenset()
    """Hypotheses that they count for; of flatline only its first cause."""
    skipped: tuple[str, ...] = ()
    """Checks that the tool left out, with its reason."""
    failure: str = ""
    """Why there is no answer."""

    def __str__(self) -> str:
        return f"FAILED: {self.failure}" if self.failure else ", ".join(self.alarms) or "nothing"


# -- what they are given ----------------------------------------------------------------------


def step_logs(trace: Trace) -> list[tuple[int, dict[str, float]]]:
    """What TRL logged at every step, under its own names; NaN stays, absent stays absent."""
    metrics = trace.steps.arrow("metrics").to_pylist()
    return [
        (int(step), {name: x for name, x in logged or () if not name.startswith(OURS)})
        for step, logged in zip(trace.steps["step"], metrics, strict=True)
    ]


def log_lines(trace: Trace) -> list[dict[str, Any]]:
    """A JSONL log as rldoctor reads it: settings, then one line per step with held-out reward."""
    heldout = trace.steps.arrow("heldout_reward").to_pylist()
    lines: list[dict[str, Any]] = [{"config": {"algorithm": "grpo", **trace.settings}}]
    for (step, logs), held in zip(step_logs(trace), heldout, strict=True):
        lines.append({"step": step, **logs, **({} if held is None else {"eval_reward": held})})
    return lines


def recording_lines(trace: Trace) -> list[dict[str, Any]]:
    """What rlprobe's recorder takes: settings, then one line per step with all its samples."""
    samples = samples_by_step(trace)
    lines: list[dict[str, Any]] = [{"config": trace.settings}]
    for step, logs in step_logs(trace):
        if logs:
            # Two numbers that its checks read and TRL does not log.
            more: dict[str, float] = {
                "nan_count": int(not math.isfinite(logs.get("grad_norm", 0.0)))
            }
            advantages = [s["advantage"] for s in samples[step] if s["advantage"] is not None]
            more |= {"adv_std": float(np.std(advantages))} if advantages else {}
            lines.append({"step": step, "logs": logs, "more": more, "samples": samples[step]})
    return lines


def samples_by_step(trace: Trace) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in trace.rollouts.table.to_pylist():
        found[row["step"]].append(
            {
                "sample_id": f"{row['step']}_{row['rollout']}",
                "group_id": f"{row['step']}_g{row['group']}",
                "prompt_id": row["prompt_id"],
                "prompt_text": row["prompt"],
                "completion_text": row["completion"],
                "completion_len": row["completion_tokens"],
                "reward_total": row["reward"],
                "reward_components": dict(row["parts"] or ()),
                "advantage": row["advantage"],
            }
        )
    return found


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


# -- asking them ------------------------------------------------------------------------------


def ask(peer: str, python: str, trace: Trace, scratch: Path) -> Opinion:
    """A peer's opinion, or how it failed: a run that it cannot read must not end all others."""
    try:
        return ASK[peer](python, trace, scratch)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        return Opinion(failure=shown(f"{type(error).__name__}: {error}"))


def ask_rlprobe(python: str, trace: Trace, scratch: Path) -> Opinion:
    source, target = scratch / "recording.jsonl", scratch / "recording"
    write_lines(source, recording_lines(trace))
    call(python, [str(FEEDER), str(source), str(target)])
    start = "from rlprobe.cli import app; app()"
    # It ends with 1 when a finding is critical.
    answer = call(python, ["-c", start, "doctor", str(target), "--json"], fine=(0, 1))
    return judged((f["signature_id"], f["severity"], f["explanation"]) for f in json.loads(answer))


def ask_rldoctor(python: str, trace: Trace, scratch: Path) -> Opinion:
    log = scratch / "log.jsonl"
    write_lines(log, log_lines(trace))
    answer = call(python, ["-m", "rl_doctor.cli", "diagnose", str(log), "--format", "json"])
    findings = json.loads(answer)["findings"]
    return judged((f["detector"], f["severity"], f["summary"]) for f in findings)


ASK: dict[str, Callable[[str, Trace, Path], Opinion]] = {
    "rlprobe": ask_rlprobe,
    "rldoctor": ask_rldoctor,
}
"""Every peer there is."""


def judged(findings: Iterable[tuple[Any, Any, Any]]) -> Opinion:
    """A peer's findings (name, severity, text) as an opinion."""
    levels: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, severity, text in findings:
        levels[str(severity).lower()].append((str(name), str(text)))
    alarms = [name for level in ("critical", "warning", "warn") for name, _ in levels[level]]
    return Opinion(
        alarms=tuple(shown(name) for name in alarms),
        means=frozenset(code for name in alarms for code in MEANS.get(name, ())),
        skipped=tuple(shown(f"{name}: {text}") for name, text in levels["skipped"]),
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


def version(peer: str, python: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({peer!r}))"
    return shown(call(python, ["-c", code]))


def shown(text: str) -> str:
    """A peer's text as one cell of a table."""
    return visible(shortened(" ".join(text.split()), limit=160)).replace("|", "\\|")
