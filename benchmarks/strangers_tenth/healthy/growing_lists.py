"""Gemma on "largest digit of the list", Dr. GRPO, lists that grow from two to four members.

The rows are in the order of difficulty and are meant to be read in that order (shuffle_dataset=False). The reward is not
scaled by its spread within the group, and the optimizer is our own: AdamW with no decay on norms, with a linear schedule.
"""

import random

import torch
from datasets import Dataset
from kit import letters, mixed, quiet, sft, small
from trl import GRPOConfig, GRPOTrainer

STEPS = 9


def largest(completions, top, **kwargs):
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, top)]


def lists(rng, length, number):
    made = []
    for _ in range(number):
        members = [rng.randint(0, 9) for _ in range(length)]
        made.append((" ".join(map(str, members)) + ">", str(max(members))))
    return made


def another(rng, answer):
    return str(rng.randint(0, 9)) if rng.random() < 0.8 else answer + " "+ answer


def build():
    tok = letters("0123456789 >")
    rng = random.Random(31)
    lesson = [row for length in (2, 3, 4) for row in lists(rng, length, 24)]
    model = small("gemma", tok, seed=5)
    warm = [row for length in (2, 3, 4) for row in lists(rng, length, 500)]
    sft(model, tok, mixed(warm, another, share=0.5, times=2), steps=420)
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if "norm" not in n], "weight_decay": 0.01},
        {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1.0 - step / STEPS))
    args = GRPOConfig(
        **quiet(
            max_steps=STEPS,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=5,
            loss_type="dr_grpo",
            scale_rewards="none",
            shuffle_dataset=False,
            seed=3,
        )
    )
    return GRPOTrainer(
        model,
        largest,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [p for p, _ in lesson], "top": [t for _, t in lesson]}),
        processing_class=tok,
        optimizers=(optimizer, schedule),
    )


if __name__ == "__main__":
    build().train()
