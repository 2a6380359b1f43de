"""Builds the lab policy from nothing: GPU minutes, or a small one on a CPU.

    python -m flatline.training.lab.build --out DIR

Supervised imitation of careless scripted episodes (transcripts.py): first drills that restate
documents and work sums, then plays of the three tasks. The checkpoint that ships with the package
was made by this script with its defaults on one H200; `build.json` beside it says how.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

from flatline.rollout.chat import ChatFormat
from flatline.training.lab import transcripts
from flatline.training.lab.model import build_model
from flatline.training.lab.tokenizer import build_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the outcome of a build."""

    width: int = 64
    layers: int = 4
    heads: int = 4
    plays: int = 150_000
    drills: int = 30_000
    drill_steps: int = 600
    steps: int = 7_000
    batch: int = 256
    learning_rate: float = 3e-3
    context_weight: float = 0.1
    """Loss weight of tokens the oracle did not write: reading them well helps copying them."""
    longest: int = 640
    """Longer plays are left out."""
    seed: int = 2


Sample = tuple[np.ndarray, np.ndarray]
"""Token ids, and whether the oracle wrote each."""


@cache
def _chats() -> dict[transcripts.Play, ChatFormat]:
    tokenizer = build_tokenizer()
    tasks = transcripts.tasks()
    return {
        play: ChatFormat(tokenizer, task.tools)
        for (play, _), task in zip(transcripts.MIXTURE, tasks, strict=True)
    }


def _make(job: tuple[str, int, int, int]) -> list[Sample]:
    kind, seed, start, stop = job
    chats = _chats()
    if kind == "plays":
        made = transcripts.plays(chats, seed, start, stop)
    else:
        made = transcripts.drills(chats[transcripts.play_world], seed, start, stop)
    return [(np.array(t.ids, np.int16), np.array(t.written)) for t in made]


def make_samples(kind: str, count: int, recipe: Recipe, pool: Any) -> list[Sample]:
    """Transcripts made on all cores."""
    size = 500
    jobs = [(kind, recipe.seed, i, min(i + size, count)) for i in range(0, count, size)]
    made = [sample for part in pool.imap(_make, jobs) for sample in part]
    return [sample for sample in made if len(sample[0]) <= recipe.longest]


def batches(samples: list[Sample], size: int, rng: random.Random) -> Iterator[list[Sample]]:
    """Endless batches of similar lengths, so that little is padding."""
    while True:
        order = rng.sample(range(len(samples)), len(samples))
        for i in range(0, len(order), size * 16):
            chunk = sorted(order[i : i + size * 16], key=lambda j: len(samples[j][0]))
            groups = [chunk[j : j + size] for j in range(0, len(chunk), size)]
            for group in rng.sample(groups, len(groups)):
                yield [samples[j] for j in group]


def _tensors(batch: list[Sample], context_weight: float, device: str) -> tuple[torch.Tensor, ...]:
    width = -(-max(len(ids) for ids, _ in batch) // 32) * 32
    ids = np.zeros((len(batch), width), np.int64)
    weights = np.zeros((len(batch), width), np.float32)
    for row, (tokens, written) in enumerate(batch):
        ids[row, : len(tokens)] = tokens
        weights[row, : len(tokens)] = np.where(written, 1.0, context_weight)
    return torch.from_numpy(ids).to(device), torch.from_numpy(weights).to(device)


def train(model: Any, drills: list[Sample], plays: list[Sample], recipe: Recipe) -> float:
    """Imitate; returns the last running loss on the oracle's own tokens."""
    device = model.device.type
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    rng = random.Random(recipe.seed)
    drill, play = batches(drills, recipe.batch, rng), batches(plays, recipe.batch, rng)
    running, began = math.nan, time.monotonic()
    for step in range(recipe.steps):
        batch = next(drill if step < recipe.drill_steps else play)
        ids, weights = _tensors(batch, recipe.context_weight, device)
        decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(step / 100, 1.0) * decay
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(input_ids=ids[:, :-1]).logits
        loss_BT = cross_entropy(
            logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        ).view(len(batch), -1)
        weights = weights[:, 1:]
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward((loss_BT * weights).sum() / weights.sum())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 199:
            own = weights == 1.0
            running = float((loss_BT.detach() * own).sum() / own.sum())
            spent = time.monotonic() - began
            print(f"step {step + 1}  loss {running:.3f}  {spent:.0f} s", flush=True)
    return running


def build(recipe: Recipe, out: Path) -> None:
    """Make the transcripts, train, save."""
    began = time.monotonic()
    # spawn: the parent has imported torch, whose threads do not survive a fork
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        drills = make_samples("drills", recipe.drills, recipe, pool)
        plays = make_samples("plays", recipe.plays, recipe, pool)
    print(
        f"{len(drills)} drills, {len(plays)} plays in {time.monotonic() - began:.0f} s", flush=True
    )
    torch.manual_seed(recipe.seed)
    tokenizer = build_tokenizer()
    model = build_model(
        vocabulary=len(tokenizer),
        end_of_turn=tokenizer.eos_token_id,
        pad=tokenizer.pad_token_id,
        width=recipe.width,
        layers=recipe.layers,
        heads=recipe.heads,
    ).to("cuda" if torch.cuda.is_available() else "cpu")
    loss = train(model, drills, plays, recipe)
    model.float().cpu().save_pretrained(out)
    tokenizer.save_pretrained(out)
    facts = {
        "recipe": asdict(recipe),
        "careless": dict(transcripts.CARELESS),
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": round(loss, 4),
        "seconds": round(time.monotonic() - began),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    (out / "build.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"saved {out}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    for name, default in asdict(Recipe()).items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, type=type(default), default=default
        )
    values = vars(parser.parse_args())
    out = values.pop("out")
    build(Recipe(**values), out)


if __name__ == "__main__":
    main()
