"""Seconds of the backward passes of one step: plays dealt out at random, and by length.

    python benchmarks/passes.py [--rounds 5] [--config run.toml]

The same plays in the same number of passes, in turns, so that a busy machine is unfair to both
alike. Nothing is updated.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from flatline.config import RunConfig, load_config
from flatline.live.inputs import by_length
from flatline.training.trainer import Trainer, build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--config", type=Path, help="another run than the lab's (TOML)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        changes = {"output_dir": folder, "eval_limit": 0}
        lab = {"batch_size": 8, "gradient_accumulation_steps": 8, **changes}
        config = load_config(args.config, **changes) if args.config else RunConfig(**lab)
        trainer = build(config).trainer
        show(trainer, ways(trainer), args.rounds)


def ways(trainer: Trainer) -> dict[str, list[dict[str, Any]]]:
    """One step's plays, both ways."""
    trainer.model.train()
    # The training loop sets it before the first pass.
    passes = trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    rows = next(iter(trainer.get_train_dataloader()))
    played = trainer._generate_and_score_completions(rows)
    shuffled = split_tensor_dict(shuffle_sequence_dict(played), passes)
    return {"shuffled": shuffled, "by-length": by_length(shuffled)}


def show(trainer: Trainer, both: dict[str, list[dict[str, Any]]], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(rounds + 1):
        for name, passes in both.items():
            seconds[name].append(backward(trainer, passes))
    print("| passes | seconds a step | tokens computed | of them padding |\n|---|---|---|---|")
    for name, passes in both.items():
        computed = sum(
            one["completion_mask"].numel() + one["prompt_mask"].numel() for one in passes
        )
        seen = sum(int(one["completion_mask"].sum() + one["prompt_mask"].sum()) for one in passes)
        median = statistics.median(seconds[name][1:])
        print(f"| {name} | {median:.2f} | {computed} | {1 - seen / computed:.0%} |")
    pairs = zip(seconds["shuffled"][1:], seconds["by-length"][1:], strict=True)
    faster = [before / after for before, after in pairs]
    print(f"\nby-length is {statistics.median(faster):.2f} times as fast "
          f"({min(faster):.2f} to {max(faster):.2f} in {rounds} rounds).")  # fmt: skip


def backward(trainer: Trainer, passes: list[dict[str, Any]]) -> float:
    trainer.model.zero_grad()
    start = time.perf_counter()
    for inputs in passes:
        trainer._compute_loss(trainer.model, inputs).backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
