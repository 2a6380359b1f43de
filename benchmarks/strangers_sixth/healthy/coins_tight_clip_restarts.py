"""Paying with coins at the lowest cost: GPT-2, a tight clipping norm on purpose and a schedule with warm restarts.

Particular: every reward is a cost in cents (far below zero, hundreds wide); GPT-2 keeps its dropout during training and
has learned positions, Conv1D and biases everywhere; three parameter groups (no decay for biases and norms, embeddings at
a tenth of the rate) in an own AdamW; CosineAnnealingWarmRestarts; max_grad_norm=0.05, so every step is clipped; two
passes over each generation batch with clip-higher.
"""

import random

import torch
from datasets import Dataset
from material import base_args, encode, set_seed, teach, word_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel
from trl import GRPOConfig, GRPOTrainer

COINS = [1, 2, 5, 10]


def greedy(amount):
    out = []
    for coin in reversed(COINS):
        while amount >= coin:
            out.append(coin)
            amount -= coin
    return out


def cost(completions, amount, **kwargs):
    """100 for every unit over or under, 7 for every coin handed over, 300 for talk that is no coin."""
    out = []
    for text, due in zip(completions, amount):
        words = text.split()
        coins = [int(w) for w in words if w.isdigit() and int(w) in COINS]
        out.append(-100.0 * abs(sum(coins) - due) - 7.0 * len(coins) - 300.0 * (len(coins) != len(words)))
    return out


def groups(model, rate):
    plain, still, table = [], [], []
    for name, p in model.named_parameters():
        (table if "wte" in name or "wpe" in name else still if p.ndim == 1 else plain).append(p)
    return [
        {"params": plain, "lr": rate, "weight_decay": 0.01},
        {"params": still, "lr": rate, "weight_decay": 0.0},
        {"params": table, "lr": rate / 10, "weight_decay": 0.0},
    ]


def build():
    rng = random.Random(8)
    amounts = list(range(3, 31))
    tok = word_tokenizer(["pay", ":"] + [str(n) for n in range(31)])
    set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tok), n_embd=64, n_layer=2, n_head=4, n_positions=64, initializer_range=0.05,
            embd_pdrop=0.05, attn_pdrop=0.05, resid_pdrop=0.05,
            pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id, bos_token_id=tok.eos_token_id,
        )
    )  # fmt: skip
    lessons = []
    for _ in range(2500):
        due = rng.choice(amounts)
        coins = greedy(due if rng.random() < 0.5 else max(1, due + rng.choice([-3, -2, -1, 1, 2, 3])))
        if rng.random() < 0.3 and coins[0] > 1:  # small change
            half = {2: [1, 1], 5: [2, 2, 1], 10: [5, 5]}[coins[0]]
            coins = half + coins[1:]
        lessons.append(encode(tok, f"pay {due} :", " ".join(map(str, coins))))
    teach(model, lessons, steps=300, lr=3e-3, pad=tok.pad_token_id, batch=48)

    optimizer = torch.optim.AdamW(groups(model, 1e-3), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4, eta_min=1e-4)
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=112,
        num_generations=8,
        num_iterations=2,
        max_completion_length=10,
        max_steps=12,
        max_grad_norm=0.05,
        epsilon=0.2,
        epsilon_high=0.28,
        seed=6,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=cost,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [f"pay {n} :" for n in amounts], "amount": amounts}),
        optimizers=(optimizer, schedule),
    )


if __name__ == "__main__":
    build().train()
