"""Recorded runs on disk for the tests of the live pages."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatline import Recorder
from flatline.config import RunConfig
from flatline.experiment import Arm, Role, register
from flatline.journal import begin as begin_journal
from tests.experiments import config_plan, plan_of
from tests.traces import SETTINGS, healthy_rows

Rows = dict[str, list[dict[str, Any]]]


def log(recorder: Recorder, rows: Mapping[str, Sequence[Mapping[str, Any]]], step: int) -> None:
    """What one step of a run records."""
    recorder.log_rollouts(row for row in rows["rollouts"] if row["step"] == step)
    recorder.log_tokens(row for row in rows["tokens"] if row["step"] == step)
    recorder.log_weights(row for row in rows["weights"] if row["step"] == step)
    for row in rows["steps"]:
        if row["step"] == step:
            recorder.log_step(**row)


def begin(folder: Path, rows: Rows) -> Recorder:
    """A recorder that has written the vocabulary, and no step."""
    recorder = Recorder(folder, settings=SETTINGS, seed=0)
    recorder.log_vocabulary({row["id"]: row["text"] for row in rows["vocabulary"]})
    return recorder


def record(folder: Path, *, steps: int = 4, rows: Rows | None = None, clean: bool = True) -> Path:
    """A whole run; not `clean` leaves it as a crash would."""
    rows = rows or healthy_rows(steps=steps, prompts=3, generations=4)
    recorder = begin(folder, rows)
    for step in sorted({row["step"] for row in rows["steps"]}):
        log(recorder, rows, step)
    recorder.close(clean=clean)
    return folder


HOSTILE = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=2">'
    "</textarea></script><svg onload=window.hacked=3>{{7*7}}{% raw %}${7*7}<!--"
    '\x1b[31m\x00\u202egnitirw\u202c\u2066x\u2069 <a href="javascript:window.hacked=4">x</a>'
)
"""What a model might write to be run, drawn or obeyed by a page."""


def hostile_rows() -> Rows:
    """A run whose every text is hostile, and one of whose completions is a megabyte long."""
    rows = healthy_rows(steps=2, prompts=2, generations=2)
    for row in rows["rollouts"]:
        row |= {"prompt": HOSTILE, "completion": HOSTILE, "gold": HOSTILE}
        row |= {"prompt_id": HOSTILE, "finish": HOSTILE, "parts": {HOSTILE: 0.5}}
    rows["rollouts"][0]["completion"] = HOSTILE + "x" * 2**20
    rows["vocabulary"] = [{"id": i, "text": HOSTILE} for i in range(100)]
    return rows


def investigate(folder: Path) -> None:
    """A journal with a registered experiment, and a note that is hostile."""
    begin_journal(folder, RunConfig(task="musique"))
    with (folder / "01-experiments-log.md").open("a") as notes:
        notes.write(f"\n{HOSTILE}\n\n| a | b |\n|--:|:-:|\n| 1 | 2 |\n")
    register(config_plan(), folder / "experiments" / "kl")


ARMS = {
    "as it is, loss mask as attention mask": (Role.CONTROL, (0.01, -0.02, 0.0)),
    "attention mask mended": (Role.TREATED, (0.3, 0.28, 0.33)),
    "mended, with a tenth of the KL weight": (Role.TREATED, (0.1, 0.25, 0.15)),
    "learning rate of 0 throughout": (Role.NEGATIVE, (0.0, 0.01, 0.0)),
    "shuffled rewards": (Role.NEGATIVE, (0.02, -0.03, 0.0)),
}
"""Arms with names as people give them, and what their seeds came to."""


def conclude(folder: Path) -> None:
    """An experiment whose runs are in, with intervals far wider than its points."""
    arms = tuple(
        Arm(name=name, role=role, command="train {seed} {kl_beta}", values={"kl_beta": str(at)})
        for at, (name, (role, _)) in enumerate(ARMS.items())
    )
    plan = register(plan_of(arms, looks=(3,)), folder)
    runs = [
        {"arm": name, "role": role.value, "seed": seed, "status": "finished", "value": value}
        | {"before": 0.5, "after": 0.5 + value, "seconds": 90, "level": "ok", "text": "seen"}
        for name, (role, values) in ARMS.items()
        for seed, value in enumerate(values)
    ]
    effect = {"value": 0.3, "low": -0.4, "high": 1.0, "n": 3}
    looks = [{"seeds": 3, "arm": "attention mask mended", "effect": effect, "settled": False}]
    result = {"version": 1, "plan": plan.digest, "runs": runs, "looks": looks, "verdict": None}
    (folder / "result.json").write_text(json.dumps(result))
