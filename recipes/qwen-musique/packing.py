"""A folder of results from the GPU in one small file, from which every table can be printed again.

The folder is what the runs left:

    names/NAME            the folder below runs/ of a training: `healthy-0`, `gsm8k-mask`
    runs/FOLDER/          a run directory of flatline with its config.toml and heldout.jsonl
    progress/NAME         the peak memory of a training, in its last line, where it was measured
    STAGE.out             what a command printed: `diagnose-NAME`, `checkup-*`, `baseline`, ...
    log.txt, gpu.csv      what ran when; how busy the GPU was
    vllm/                 the same for vLLM and DeepSpeed

A visit has names/, runs/, its diagnoses and log.txt; of all else what is there is kept.
"""

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flatline.errors import TraceError
from flatline.heldout import read_scores
from flatline.trace import Trace

SETTINGS = (
    *("task", "chat_template", "order", "max_prompt_length", "max_new_tokens", "max_turns"),
    *("batch_size", "gradient_accumulation_steps", "num_generations", "passes"),
    *("gradient_checkpointing", "bf16", "kl_beta", "lora_r", "lora_alpha", "learning_rate"),
    *("max_grad_norm", "temperature", "eval_limit", "eval_samples", "fault", "seed"),
)
"""What a run is repeated with. Folders are left out: they mean nothing elsewhere."""
CURVES = (
    *("step", "reward", "kl", "kl_max", "grad_norm", "logprob_gap", "logprob_gap_max"),
    *("seconds", "seconds_sampling", "seconds_scoring", "seconds_backward", "completion_length"),
)
"""Columns of a trace's steps that are kept."""
WARMSTART = ("problems", "left_out", "plays", "steps", "loss", "seconds")
BASELINE = (
    *("parts", "per_hop", "pass_at_k", "group_std"),
    *("finish", "events", "problems", "samples"),
)
TABLES = ("engine-96", "checkup-healthy", "recorder")
"""Benchmarks that print tables themselves."""
ALARMS = ("fault", "suspect")
ASKED = ("H20", "H35", "H37", "H38", "H43")
"""Findings that are kept even where they are no alarm: the page quotes them."""
GPU_SECONDS = 10
"""Samples of the GPU are kept as one mean for so many seconds."""

Json = dict[str, Any]


def pack(folder: Path) -> Json:
    """Everything that the tables are made of."""
    names = {path.name: path.read_text().strip() for path in sorted((folder / "names").iterdir())}
    runs = {name: folder / "runs" / where for name, where in names.items()}
    texts = {name: _if_there(folder / f"{name}.out", Path.read_text) for name in TABLES}
    kept = {
        "log": _lines(folder / "log.txt"),
        "problems": _problems(runs.values()),
        "runs": {name: pack_run(folder, name, path) for name, path in runs.items()},
        "warmstart": _if_there(folder / "warmstart.out", lambda file: _printed(file, WARMSTART)),
        "baseline": _if_there(folder / "baseline.out", lambda file: _printed(file, BASELINE)),
        "verdict": _if_there(folder / "verdict.out", _verdict),
        "checkups": {name: _findings(json_after_log(path)) for name, path in _checkups(folder)},
        "tables": {name: text for name, text in texts.items() if text},
        "gpu": _if_there(folder / "gpu.csv", gpu),
        "vllm": _if_there(folder / "vllm" / "direct.json", _vllm),
        "zero": _if_there(folder / "vllm" / "runs" / "lab-zero3", _zero),
    }
    return {name: found for name, found in kept.items() if found}


def _if_there(path: Path, read: Callable[[Path], Any]) -> Any:
    """None where a visit had no such stage."""
    return read(path) if path.exists() else None


def _problems(folders: Iterable[Path]) -> dict[str, list[str]]:
    """The problem of each held-out play, by task; runs of a task share them."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        task = tomllib.loads((folder / "config.toml").read_text())["task"]
        for score in read_scores(folder):
            if found.setdefault(task, score.problems) != score.problems:
                raise TraceError(f"{folder} was measured on other problems than the runs before it")
    return found


def pack_run(folder: Path, name: str, path: Path) -> Json:
    config = tomllib.loads((path / "config.toml").read_text())
    peak = _if_there(folder / "progress" / name, _peak)
    return {
        "arm": name.rstrip("0123456789").rstrip("-"),
        "settings": {key: config[key] for key in SETTINGS if key in config},
        "steps": _curves(path),
        "heldout": [
            {
                "step": score.step,
                "plays": {part: _short(values) for part, values in score.plays.items()},
            }
            for score in read_scores(path)
        ],
        "diagnosis": _findings(json_after_log(folder / f"diagnose-{name}.out")),
        **({} if peak is None else {"peak_gib": peak}),
    }


def _peak(progress: Path) -> float:
    return float(_lines(progress)[-1].split(" peak ")[1].split()[0])


def _curves(path: Path) -> dict[str, list[float | int | None]]:
    """The steps that were trained, column by column; what was not recorded is left out."""
    steps = Trace.open(path).steps
    trained = steps["step"] > 0
    return {name: _short(steps[name][trained]) for name in CURVES if name in steps}


def _short(values: Any) -> list[float | int | None]:
    """Five significant digits; whole numbers without a point."""
    return [
        None if value is None or not math.isfinite(value) else _digits(float(value))
        for value in values
    ]


def _digits(value: float) -> float | int:
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded


def json_after_log(path: Path) -> Json:
    """What `--json` printed, behind the log lines that a library may have printed first."""
    text = path.read_text()
    start = 0 if text.startswith("{") else text.index("\n{\n") + 1
    found = json.loads(text[start:])
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found


def _printed(path: Path, keys: Iterable[str]) -> Json:
    found = json_after_log(path)
    return {key: found[key] for key in keys}


def _findings(found: Mapping[str, Any]) -> Json:
    kept = [
        one for one in found["findings"] if one["level"] in ALARMS or one["hypothesis"] in ASKED
    ]
    levels = [one["level"] for one in found["findings"]]
    more = {"trend": found["trend"]["text"]} if found.get("trend") else {}
    if found.get("explained_by"):
        more["explained_by"] = found["explained_by"]
    return {
        "summary": found["summary"],
        **more,
        "levels": {level: levels.count(level) for level in sorted(set(levels))},
        "findings": [
            {key: one[key] for key in ("hypothesis", "name", "level", "text")} for one in kept
        ],
    }


def _checkups(folder: Path) -> list[tuple[str, Path]]:
    """The checkup that `investigate` kept is that of the setup with the mask."""
    found = [
        ("preset", folder / "checkup-preset.out"),
        *(("mask", kept) for kept in (folder / "runs").glob("*-checkup.json")),
        ("vLLM, lab", folder / "vllm" / "lab-vllm-checkup.out"),
        ("vLLM, 1.5B", folder / "vllm" / "big-vllm-checkup.out"),
    ]
    return [(name, path) for name, path in found if path.exists()]


def _verdict(path: Path) -> Json:
    found = json_after_log(path)
    plan = {key: found["plan"][key] for key in ("question", "outcome", "family", "looks")}
    return {"plan": plan, "verdict": found["verdict"]}


def gpu(path: Path) -> list[list[float]]:
    """Second, percent busy, GiB in use: means (and the most memory) of `GPU_SECONDS` each."""
    rows = [line.replace(",", "").split() for line in _lines(path)]
    table = np.array([[float(cell) for cell in row[:3]] for row in rows if len(row) >= 4])
    slots = table[:, 0] // GPU_SECONDS
    return [
        [
            int(slot * GPU_SECONDS),
            round(float(table[slots == slot, 1].mean()), 1),
            round(float(table[slots == slot, 2].max()) / 1024, 1),
        ]
        for slot in np.unique(slots)
    ]


def _vllm(path: Path) -> Json:
    """From the file of direct comparisons and what lies beside it."""
    folder, direct = path.parent, json.loads(path.read_text())
    kept = {
        "log": _parts(folder),
        "version": direct["vllm"],
        "direct": {name: value for name, value in direct.items() if isinstance(value, dict)},
        "runs": _engine_runs(folder, {"lab": "lab-vllm", "1.5B": "big-vllm"}),
    }
    if not (folder / "runs" / "big-zero3").exists():
        kept["zero3"] = _lines(folder / "big-zero-train.err")[-1]
    return kept


def _zero(path: Path) -> Json:
    """From the lab's run under ZeRO-3 and what lies beside it."""
    folder, parts = path.parents[1], _parts(path.parents[1])
    failed = [name for name, code, _ in map(str.split, parts) if code != "0"]
    return {
        "log": parts,
        "version": json.loads((path / "run.json").read_text())["versions"]["deepspeed"],
        "runs": _engine_runs(folder, {"lab": "lab-zero3", "1.5B": "big-zero3"}),
        "said": {name: _said(folder / f"{name}.err") for name in failed},
    }


def _engine_runs(folder: Path, runs: Mapping[str, str]) -> Json:
    return {
        name: {
            "steps": _curves(folder / "runs" / where),
            "diagnosis": _findings(
                json_after_log(folder / f"{where.removesuffix('3')}-diagnose.out")
            ),
        }
        for name, where in runs.items()
    }


def _parts(folder: Path) -> list[str]:
    """`NAME CODE SECONDS` of each command."""
    return [line for line in _lines(folder / "log.txt") if len(line.split()) == 3]


def _said(path: Path) -> str:
    """The first line of flatline's own error; what comes after it may name folders."""
    return next((line for line in _lines(path) if line.startswith("flatline: ")), "")


def _lines(path: Path) -> list[str]:
    return path.read_text().strip().splitlines()
