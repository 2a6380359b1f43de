"""Journals and results to test with: an investigation of H09 that came out as it should."""

from pathlib import Path
from typing import Any

from flatline.config import RunConfig
from flatline.journal import Journal, begin

CONTROL, TREATED = "mask as attention", "mask mended"


def journal_at(path: Path, **settings: Any) -> Journal:
    begin(path, RunConfig(**settings))
    return Journal.open(path)


def plan_of(name: str = "h09-mask", code: str = "H09", **more: Any) -> dict[str, Any]:
    faulty = RunConfig(fault="mask-as-attention").to_dict() | {"output_dir": "/home/me/runs/x"}
    arms = [
        {"name": CONTROL, "role": "control", "config": faulty, "command": None, "values": {}},
        {
            "name": TREATED,
            "role": "treated",
            "config": faulty | {"fault": None},
            "command": None,
            "values": {},
        },
        {"name": "learning-rate-0", "role": "negative", "config": faulty, "values": {}},
    ]
    plan = {
        "version": 1,
        "name": name,
        "hypothesis": code,
        "question": "Does the trainer see the question?",
        "factor": "fault",
        "outcome": "heldout_reward",
        "smallest_effect": 0.05,
        "mechanism": "hidden context tokens",
        "arms": arms,
        "registered": "2026-01-02T03:04:05Z",
        "digest": "abc",
    }
    return plan | more


def result_of(seeds: int = 3, gain: float = 0.3, **more: Any) -> dict[str, Any]:
    runs = [
        {
            "arm": arm,
            "role": role,
            "seed": seed,
            "folder": f"../../home/me/runs/{role}-s{seed}",
            "trace": f"../../home/me/runs/{role}-s{seed}/trace",
            "status": "finished",
            "before": 0.59,
            "after": 0.59 + moved + seed / 100,
            "value": moved + seed / 100,
            "seconds": 90.0,
            "level": "fault" if role == "control" else "ok",
            "text": "hidden",
        }
        for seed in range(seeds)
        for arm, role, moved in ((CONTROL, "control", 0.0), (TREATED, "treated", gain))
    ]
    looks = [{"seeds": seeds, "effect": effect_of(gain, seeds), "settled": True}]
    return {"version": 1, "plan": "abc", "runs": runs, "looks": looks} | more


def effect_of(value: float, n: int = 3) -> dict[str, Any]:
    return {"value": value, "low": value - 0.05, "high": value + 0.05, "n": n}


def verdict_of(ruling: str = "validated", code: str = "H09", **more: Any) -> dict[str, Any]:
    mechanism = {"control": "present", "treated": "absent", "direct": True, "text": "Hidden."}
    return {
        "hypothesis": code,
        "verdict": ruling,
        "confidence": "high",
        "effect": effect_of(0.3),
        "smallest_effect": 0.05,
        "reason": "Taking H09 away moved the outcome.",
        "would_change": "New seeds whose interval reaches 0.",
        "seeds": 3,
        "alpha": 0.05,
        "mechanism": mechanism,
    } | more


def curves_of(seeds: int = 3, *, rise: float = 0.3, steps: int = 30) -> dict[str, Any]:
    wobble = [0.01 * (-1) ** i for i in range(steps)]
    rising = [0.6 + rise * i / steps + wobble[i] for i in range(steps)]
    flat = [0.6 + wobble[i] for i in range(steps)]
    made = {f"{TREATED}-{seed}": {"reward": rising, "heldout": []} for seed in range(seeds)}
    return made | {f"{CONTROL}-{seed}": {"reward": flat, "heldout": []} for seed in range(seeds)}


def everything(path: Path) -> dict[str, bytes]:
    """Every file of a journal but its lock."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }
