"""How long `flatline diagnose` takes on a long run, a log, a wide log and a long one, beside what
docs/costs.md promises, and how that grows with the size.

    python benchmarks/diagnose_speed.py [--only run log wide long] [--keep DIR] [--each] [--crashed]
        [--steps 10000] [--rows 1000] [--columns 40000] [--long 300000]

    run    so many recorded steps, through the public `Recorder`: 16 rollouts in groups of 8 a step,
           with texts, parts, tool calls, the tokens of every step, 56 weight tensors and the 40
           metrics that TRL logs
    log    a `trainer_state.json` of so many rows with these 40 metrics
    wide   20 rows with so many columns, as loggers of every weight leave
    long   so many rows with a reward and a loss

Each is made at half of its size too and given to the command in a fresh process, so that the clock
includes starting Python and importing, with bytecode that is cached, as an installed package has
it. CPU seconds are told apart, because a shared machine makes the clock run longer; growth is that
of CPU seconds from half to whole, and twice is in proportion. Only the run may load torch.
`--each` also tells what each hypothesis takes, `--crashed` leaves the run as a killed process
would.

The reward is flat: a run that rises is excused early by many signs, so this is the slower case.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flatline.rollout.record import Author
from flatline.trace import Recorder, Trace

GROWTH = 2.2
"""Times the CPU seconds of half the size, at most."""
GROUPS, SIZE, TENSORS = 2, 8, 56
PROMPT_TOKENS = 24
SETTINGS = {
    "num_generations": SIZE,
    "beta": 0.04,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "num_iterations": 1,
    "epsilon": 0.2,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "max_completion_length": 512,
    "mask_truncated_completions": False,
    "per_device_batch_size": GROUPS * SIZE,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "world_size": 1,
    "shuffle_dataset": True,
    "bf16": False,
    "dataset_size": 8000,
    "prompts_per_step": GROUPS,
}
AUTHORS = np.array(
    [Author.MODEL] * 12 + [Author.TEMPLATE] * 3 + [Author.TOOL] * 10 + [Author.TEMPLATE] * 3 +
    [Author.MODEL] * 20,
    dtype=np.uint8,
)  # fmt: skip
"""One tool call, then the answer."""
MODEL = AUTHORS == Author.MODEL
CALL = (
    '<tool_call>\n{"name": "retrieve_documents", "arguments": {"query": "QUERY founder", '
    '"top_n": 1}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nDocument ID: 3\n'
    "# QUERY\nQUERY is a company. Its headquarters is Nerntex. Its founder is Lalmara.\n"
    "</tool_response><|im_end|>\n<|im_start|>assistant\n<think>Its founder is Lalmara.</think>"
    "<cite>3</cite><answer>ANSWER</answer><|im_end|>"
)

# Run in a fresh process: the command itself, and whether torch was loaded on the way.
ASKED = """
import resource, sys
from flatline.cli import app
try:
    app(["diagnose", sys.argv[1], "--json"])
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(int("torch" in sys.modules), peak, file=sys.stderr)
"""


class Promise(NamedTuple):
    """What is diagnosed, and in how many seconds."""

    name: str
    size: int
    unit: str
    goal: float
    make: Callable[[Path, int], None]
    ending: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--columns", type=int, default=40_000)
    parser.add_argument("--long", type=int, default=300_000)
    parser.add_argument("--only", nargs="+", help="of run, log, wide and long")
    parser.add_argument("--keep", type=Path, help="make all here, or use what is there")
    parser.add_argument("--each", action="store_true", help="what each hypothesis takes")
    parser.add_argument("--crashed", action="store_true", help="a run that was killed")
    options = parser.parse_args()

    def record(path: Path, steps: int) -> None:
        make_run(path, steps, clean=not options.crashed)

    promises = [
        Promise("run", options.steps, "recorded steps", 4.0, record),
        Promise("log", options.rows, "rows of a log", 0.7, make_log, ".json"),
        Promise("wide", options.columns, "columns", 8.0, make_wide, ".jsonl"),
        Promise("long", options.long, "rows of two columns", 5.0, make_long, ".jsonl"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        asked = [one for one in promises if one.name in (options.only or one.name)]
        late = [one.name for one in asked if not is_kept(one, place)]
        if options.each:
            print_each(made(promises[0], place, options.steps))
    print(
        f"Not kept: {', '.join(late)}" if late else "All promises that were asked about are kept."
    )
    return 1 if late else 0


def made(one: Promise, place: Path, size: int) -> Path:
    """What a promise is about, in this size."""
    path = place / f"{one.name}-{size}{one.ending}"
    if not path.exists():
        one.make(path, size)
    return path


# -- what is diagnosed ------------------------------------------------------------------------


def make_run(folder: Path, steps: int, *, clean: bool) -> None:
    """A run whose reward is flat, as a user's own loop would record it."""
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    recorder = Recorder(folder, settings={**SETTINGS, "max_steps": steps}, seed=0)
    recorder.log_vocabulary({token: f" w{token}" for token in range(500)})
    for step in range(1, steps + 1):
        rollouts = list(_rollouts(rng, step))
        recorder.log_rollouts(rollouts)
        recorder.log_tokens(_tokens(rng, row) for row in rollouts)
        recorder.log_weights(_weights(rng, step))
        recorder.log_step(**_step(rng, step, rollouts))
    recorder.close(clean=clean)
    size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
    print(f"{steps:,} steps recorded in {time.perf_counter() - start:.0f} s, {size:,.0f} MB")


def _rollouts(rng: np.random.Generator, step: int) -> Iterator[dict[str, Any]]:
    for group in range(GROUPS):
        problem = int(rng.integers(8000))
        right = rng.random(SIZE) < rng.beta(2, 2)
        tidy = rng.random(SIZE) < 0.9
        reward = 0.9 * right + 0.1 * tidy
        advantage = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-4)
        for at in range(SIZE):
            answer = "Nerntex" if right[at] else f"Tirn{int(rng.integers(90))}"
            cut = rng.random() < 0.02
            yield {
                "step": step,
                "rollout": group * SIZE + at,
                "group": group,
                "prompt_id": f"{2 + problem % 3}hop__{problem}",
                "hops": 2 + problem % 3,
                "reward": float(reward[at]),
                "advantage": float(advantage[at]),
                "parts": {
                    "combined": float(reward[at]),
                    "exact_match": float(right[at]),
                    "f1": float(right[at]),
                    "retrieval_recall": float(rng.integers(3) / 2),
                    "citation": float(rng.integers(2)),
                    "format": float(tidy[at]),
                },
                "weight_version": step - 1,
                "finish": "turn_length" if cut else "answered",
                "turns": 2,
                "tool_calls": 1,
                "tool_errors": int(rng.random() < 0.01),
                "malformed_calls": 0,
                "malformed_answers": int(not tidy[at]),
                "supporting": 2,
                "supporting_seen": int(rng.integers(3)),
                "documents_dropped": 0,
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": len(AUTHORS),
                "model_tokens": int(MODEL.sum()),
                "trained_tokens": int(MODEL.sum()),
                "as_sampled": 1,
                "completion": CALL.replace("QUERY", f"Val{problem}").replace("ANSWER", answer),
                "gold": "Nerntex",
            }


def _tokens(rng: np.random.Generator, rollout: dict[str, Any]) -> dict[str, Any]:
    sampler = np.where(MODEL, -rng.exponential(0.5, len(AUTHORS)), 0.0).astype(np.float32)
    trainer = (sampler + np.where(MODEL, rng.normal(0, 2e-7, len(AUTHORS)), 0.0)).astype(np.float32)
    drift = rng.normal(0, 0.02 * (rollout["step"] > 1), len(AUTHORS))
    return {
        "step": rollout["step"],
        "rollout": rollout["rollout"],
        "prompt_ids": rng.integers(0, 500, PROMPT_TOKENS),
        "prompt_attended": np.ones(PROMPT_TOKENS, np.uint8),
        "ids": rng.integers(0, 500, len(AUTHORS)),
        "author": AUTHORS,
        "trained": MODEL.astype(np.uint8),
        "attended": np.ones(len(AUTHORS), np.uint8),
        "sampler": sampler,
        "trainer": trainer,
        "old": trainer,
        "reference": (trainer + drift).astype(np.float32),
    }


def _weights(rng: np.random.Generator, step: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "name": f"model.layers.{tensor // 14}.proj{tensor % 7}.lora_{'AB'[tensor // 7 % 2]}",
            "size": 4096,
            "dtype": "float32",
            "norm": 1.7 + 1e-5 * step,
            "grad_norm": float(rng.uniform(0.01, 0.04)),
            "update_norm": float(rng.uniform(2e-4, 4e-4)),
            "changed_share": 1.0,
            "sampled": 4096,
            "in_optimizer": 1,
        }
        for tensor in range(TENSORS)
    ]


def _step(rng: np.random.Generator, step: int, rollouts: list[dict[str, Any]]) -> dict[str, Any]:
    rewards = np.array([row["reward"] for row in rollouts]).reshape(GROUPS, SIZE)
    spread = rewards.std(axis=1, ddof=1)
    logged = _metrics(rng, step, float(rewards.mean()))
    return {
        "step": step,
        "time": 1.8e9 + 5.0 * step,
        "seconds": 5.0,
        "reward": float(rewards.mean()),
        "reward_std_within": float(spread.mean()),
        "zero_std_share": float((spread == 0).mean()),
        "advantage_max": max(abs(row["advantage"]) for row in rollouts),
        "kl": logged["kl"],
        "kl_max": 30 * logged["kl"],
        "ratio_max": 0.0,
        "logprob_gap": 2e-7,
        "logprob_gap_max": 2e-6,
        "clip_share": 0.0,
        "entropy": logged["entropy"],
        "loss": logged["loss"],
        "grad_norm": logged["grad_norm"],
        "learning_rate": 1e-5,
        "completion_length": float(len(AUTHORS)),
        "truncated_share": 0.02,
        "metrics": logged,
    }


def _metrics(rng: np.random.Generator, step: int, reward: float) -> dict[str, float]:
    """What TRL logs, and as many more as fill 40 names."""
    known = {
        "loss": float(rng.normal(0, 0.01)),
        "grad_norm": float(rng.uniform(0.1, 0.3)),
        "learning_rate": 1e-5,
        "reward": reward,
        "reward_std": 0.4,
        "frac_reward_zero_std": 0.0,
        "kl": 2e-3 * min(1.0, step / 200) * float(rng.uniform(0.8, 1.2)) * (step > 1),
        "entropy": 0.6 + float(rng.normal(0, 0.05)),
        "completions/mean_length": float(len(AUTHORS)) + float(rng.normal(0, 2)),
        "completions/clipped_ratio": 0.02,
        "clip_ratio/region_mean": 0.0,
        "num_tokens": 1000.0 * step,
        "epoch": step / 4000,
    }
    return known | {f"debug/number_{at}": float(rng.random()) for at in range(40 - len(known))}


def make_log(path: Path, rows: int) -> None:
    """A `trainer_state.json` as transformers leaves it in a checkpoint."""
    rng = np.random.default_rng(0)
    history = [
        {"step": step, **_metrics(rng, step, float(rng.beta(4, 6)))} for step in range(1, rows + 1)
    ]
    state = {"best_metric": None, "epoch": 1.25, "global_step": rows, "log_history": history}
    path.write_text(json.dumps(state, indent=2))


def make_wide(path: Path, columns: int) -> None:
    """Twenty rows with a number for each of many tensors."""
    rng = np.random.default_rng(0)
    names = [f"norm/model.layers.{at // 7}.proj{at % 7}" for at in range(columns)]
    with path.open("w") as file:
        for step in range(1, 21):
            values = dict(zip(names, rng.random(columns).tolist(), strict=True))
            file.write(json.dumps({"step": step, "reward": float(rng.beta(4, 6)), **values}) + "\n")


def make_long(path: Path, rows: int) -> None:
    """A step, a reward and a loss in every row."""
    rng = np.random.default_rng(0)
    reward, loss = rng.beta(4, 6, rows).tolist(), rng.normal(0, 0.01, rows).tolist()
    with path.open("w") as file:
        for step, values in enumerate(zip(reward, loss, strict=True), start=1):
            row = {"step": step, "reward": values[0], "loss": values[1]}
            file.write(json.dumps(row) + "\n")


# -- how long it takes ------------------------------------------------------------------------


def is_kept(one: Promise, place: Path) -> bool:
    """Whether the command is as fast as is promised, and slower in proportion to the size."""
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(place / "bytecode")
    half, whole = (made(one, place, size) for size in (one.size // 2, one.size))
    asked(half, environment)  # writes the bytecode
    before, after = asked(half, environment), asked(whole, environment)
    growth = after.cpu / before.cpu
    print(
        f"{one.size:>8,} {one.unit:<20} {after.clock:6.2f} s by the clock "
        f"(promised: {one.goal:g}), {after.cpu:6.2f} s CPU; "
        f"half as many {before.clock:6.2f} s, {before.cpu:6.2f} s CPU: "
        f"{growth:.2f} times; peak {after.peak:,.0f} MB{', torch was loaded' * after.torch}"
    )
    torch = after.torch and one.name != "run"
    return after.clock <= one.goal and growth <= GROWTH and not torch


class Taken(NamedTuple):
    """By one call of the command."""

    clock: float
    cpu: float
    peak: float
    """MB of memory."""
    torch: bool
    """Whether it was loaded."""


def asked(path: Path, environment: dict[str, str]) -> Taken:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    found = subprocess.run(
        [sys.executable, "-c", ASKED, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if not found.stdout:
        raise SystemExit(found.stderr)
    torch, peak = map(int, found.stderr.splitlines()[-1].split())
    return Taken(seconds, cpu, peak / 2**10, bool(torch))


def print_each(run: Path) -> None:
    """Seconds by hypothesis; what they share counts for the first that asks."""
    from flatline.diagnosis.lacking import origin_of
    from flatline.diagnosis.report import guarded
    from flatline.hypotheses import HYPOTHESES
    from flatline.hypotheses.base import HasSign

    trace, taken = Trace.open(run), []
    for one in HYPOTHESES:
        if isinstance(one, HasSign):
            start = time.perf_counter()
            level = guarded(one, one.sign, trace, origin=origin_of(trace)).level
            taken.append((time.perf_counter() - start, f"{one.id} {one.name}", level.value))
    for seconds, name, level in sorted(taken, reverse=True):
        print(f"  {seconds:6.3f} s  {name} ({level})")


if __name__ == "__main__":
    sys.exit(main())
