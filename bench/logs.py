"""A recorded run as the tools see it that read less than flatline: a log, or steps with samples."""

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flatline.trace import Trace
from flatline.trace.importers import open_log

OURS = ("debug/", "lora/", "time/")
"""Metrics that flatline's trainer adds to TRL's; a peer could take `debug/reward_std` for TRL's."""


def step_logs(trace: Trace) -> list[tuple[int, dict[str, float]]]:
    """What TRL logged at every step, under its own names; NaN stays, absent stays absent."""
    metrics = trace.steps.arrow("metrics").to_pylist()
    return [
        (int(step), {name: x for name, x in logged or () if not name.startswith(OURS)})
        for step, logged in zip(trace.steps["step"], metrics, strict=True)
    ]


def log_lines(trace: Trace) -> list[dict[str, Any]]:
    """A JSONL log: settings, then one line per step with held-out reward."""
    heldout = trace.steps.arrow("heldout_reward").to_pylist()
    lines: list[dict[str, Any]] = [{"config": {"algorithm": "grpo", **trace.settings}}]
    for (step, logs), held in zip(step_logs(trace), heldout, strict=True):
        lines.append({"step": step, **logs, **({} if held is None else {"eval_reward": held})})
    return lines


def log_alone(trace: Trace) -> Trace:
    """The run as flatline sees it in the very log that rldoctor gets."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "log.jsonl"
        write_lines(path, log_lines(trace))
        return open_log(path)


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
    """Every rollout under rlprobe's names."""
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
