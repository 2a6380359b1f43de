"""Healthy runs of the lab policy: does the reward climb, and does it stay flat where it must?

    python benchmarks/healthy.py                 every run, one after the other
    python benchmarks/healthy.py lora full       only those whose name begins so

Prints a Markdown table: held-out reward before and after, the paired gain with its 95 % interval
over problems, wall time, and seconds of one step by part. `--json FILE` keeps the same numbers.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from flatline.config import RunConfig
from flatline.training.run import Result, train

STEPS = 30
SEEDS = (0, 1, 2)

BASE = RunConfig(max_steps=STEPS)
RUNS: dict[str, RunConfig] = {
    **{f"lora, seed {seed}": replace(BASE, seed=seed) for seed in SEEDS},
    **{f"full, seed {seed}": replace(BASE, seed=seed, peft=False) for seed in SEEDS},
    "dr_grpo": replace(BASE, loss_type="dr_grpo"),
    "bnpo": replace(BASE, loss_type="bnpo"),
    # Right or wrong, and nothing between: twice the noise of the other tasks wants a lower rate.
    "gsm8k, lr 1e-3": replace(BASE, task="gsm8k", learning_rate=1e-3),
    "toolmath": replace(BASE, task="toolmath"),
    "lora, beta 0.02": replace(BASE, kl_beta=0.02),
    "learning rate 0": replace(BASE, learning_rate=0.0),
}
HEADER = (
    "| run | before | after | gain (95 % interval) | seconds | s/step: sampling | scoring "
    "| backward | most log-prob gap |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of the names of the runs")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    rows = []
    print(HEADER, flush=True)
    for name, config in chosen(args.names):
        with tempfile.TemporaryDirectory() as folder:
            result = train(replace(config, max_steps=args.steps, output_dir=folder))
        row = numbers(name, result)
        rows.append(row)
        print(as_markdown(row), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=2))


def chosen(names: list[str]) -> Iterator[tuple[str, RunConfig]]:
    for name, config in RUNS.items():
        if not names or name.startswith(tuple(names)):
            yield name, config


def numbers(name: str, result: Result) -> dict[str, Any]:
    gain = result.gain
    assert gain is not None
    steps = [line for line in result.log if "grad_norm" in line]
    return {
        "run": name,
        "before": result.scores[0].reward.value,
        "after": result.scores[-1].reward.value,
        "gain": gain.to_json(),
        "seconds": result.seconds,
        "sampling": result.mean("time/sampling"),
        "scoring": result.mean("time/scoring"),
        "backward": result.mean("time/backward"),
        "gap": max(line["debug/logprob_gap_max"] for line in steps),
    }


def as_markdown(row: dict[str, Any]) -> str:
    gain = row["gain"]
    interval = f"{gain['value']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
    times = " | ".join(f"{row[part]:.2f}" for part in ("sampling", "scoring", "backward"))
    return (
        f"| {row['run']} | {row['before']:.3f} | {row['after']:.3f} | {interval} "
        f"| {row['seconds']:.0f} | {times} | {row['gap']:.0e} |"
    )


if __name__ == "__main__":
    sys.exit(main())
