"""What makes copying form early in the lab policy: four starts of the same training.

    python benchmarks/copying.py

Trains on drills at batch 32 on one thread and prints the loss on the tokens of names, which can
only be copied. About six minutes. docs/design/lab.md says what follows from it.
"""

import random

import torch
from torch.nn.functional import cross_entropy

from flatline.tasks.names import HEADS, TAILS
from flatline.training.lab import build, model
from flatline.training.lab.tokenizer import build_tokenizer

STEPS, SHOWN, BATCH, RATE = 250, 50, 32, 2e-3
STARTS = {
    "plain": (1.0, False),
    "planted heads": (1.0, True),
    "large embeddings": (4.0, False),
    "both": (4.0, True),
}


def fresh_model(scale: float, planted: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    model._EMBEDDING_SCALE = scale
    plant = model.plant_copying_heads
    model.plant_copying_heads = plant if planted else lambda _: None
    try:
        return model.build_model(
            vocabulary=len(tokenizer),
            end_of_turn=tokenizer.eos_token_id,
            pad=tokenizer.pad_token_id,
            width=128,
            layers=4,
            heads=4,
        )
    finally:
        model.plant_copying_heads = plant


def name_losses(policy: torch.nn.Module, samples: list[build.Sample]) -> list[float]:
    """Mean loss on tokens of names, per 50 steps."""
    names = torch.tensor(build_tokenizer().convert_tokens_to_ids([*HEADS, *TAILS]))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, betas=(0.9, 0.98))
    drawn = build.batches(samples, BATCH, random.Random(0))
    seen: list[float] = []
    for step in range(STEPS):
        ids, weights = build._tensors(next(drawn), 0.1, "cpu")
        logits = policy(input_ids=ids[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss, weights = loss.view(len(ids), -1), weights[:, 1:]
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, step / 100)
        optimizer.zero_grad()
        ((loss * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        copied = (weights == 1.0) & torch.isin(ids[:, 1:], names)
        if copied.any():  # a batch may hold nothing but sums
            seen.append(float(loss.detach()[copied].mean()))
        else:
            seen.append(float("nan"))
    means = torch.tensor(seen).view(-1, SHOWN).nanmean(dim=1)
    return [float(mean) for mean in means]


def main() -> None:
    torch.set_num_threads(1)
    samples = build._make(("drills", 0, 0, 6000))
    columns = [str(step) for step in range(SHOWN, STEPS + 1, SHOWN)]
    print(f"| start | loss on names up to step {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name, start in STARTS.items():
        losses = name_losses(fresh_model(*start), samples)
        print(f"| {name} | {' | '.join(f'{loss:.2f}' for loss in losses)} |", flush=True)


if __name__ == "__main__":
    main()
