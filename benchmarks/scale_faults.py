"""What defects of large runs do to one batch of the lab, beside their healthy twins.

    python benchmarks/scale_faults.py [--only 'shards*']

Prints for each: how far sampler and trainer are apart before any update, and, where the trainer is
what departs, the gradient of one step against that of the sound trainer on the same rollouts
(cosine and ratio of lengths).
"""

import argparse
from fnmatch import fnmatch
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers.utils import logging

from flatline.config import RunConfig
from flatline.training.trainer import build

SCORED = ("packed-unmasked:0", "packed-unmasked", "shards-apart:0", "shards-apart")
"""Other scores of the same rollouts. At strength 0 each is its own healthy twin: the same code, but
with what must be exchanged."""
SAMPLED = ("experts-rerouted:23", "experts-rerouted", "sampler-requantised")
"""Other samplers, each with rollouts of its own; the first is a healthy twin."""


def looked_at(fault: str | None, batch: dict[str, Any] | None) -> tuple[Any, float, torch.Tensor]:
    """A batch (its own where none is given), the gap on it and its gradient."""
    with TemporaryDirectory() as folder:
        trainer = build(
            RunConfig(datasets="lab,,train[:24]", eval_limit=0, fault=fault, output_dir=folder)
        ).trainer
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        if batch is None:
            rows = next(iter(trainer.get_train_dataloader()))
            batch = trainer._generate_and_score_completions(rows)
        trainer.model.zero_grad()
        trainer._compute_loss(trainer.model, batch).backward()
        mask_BT = (batch["completion_mask"] * batch["tool_mask"]).bool()
        off_BT = batch["sampling_per_token_logps"] - trainer._trained_logps
        parts = [one.grad.flatten() for one in trainer.model.parameters() if one.grad is not None]
        return batch, float(off_BT.abs()[mask_BT].mean()), torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="faults by name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    batch, gap, sound = looked_at(None, None)
    print("| fault | gap (nat) | cosine | length |\n|---|---|---|---|")
    print(f"| none | {gap:.1e} | 1 | 1 |")
    for fault in (one for one in SAMPLED if fnmatch(one, args.only)):
        print(f"| {fault} | {looked_at(fault, None)[1]:.1e} | - | - |")
    for fault in (one for one in SCORED if fnmatch(one, args.only)):
        _, gap, gradient = looked_at(fault, batch)
        alike = float(torch.cosine_similarity(gradient, sound, dim=0))
        print(
            f"| {fault} | {gap:.1e} | {alike:.4f} | {float(gradient.norm() / sound.norm()):.3f} |"
        )


if __name__ == "__main__":
    main()
