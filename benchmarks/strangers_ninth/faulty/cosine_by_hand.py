"""The function given to LambdaLR returns the learning rate itself, but LambdaLR multiplies it with the optimizer's rate. 6e-4 becomes 6e-4 times 6e-4 = 3.6e-7, and
the policy does not move in the whole run.
say: LambdaLR expects a factor, but the function returns an absolute learning rate, so the effective rate is the square (about 1e-7) - far too small for anything to be learnt.
"""

import math
import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from trl import RLOOConfig, RLOOTrainer

PEAK, FLOOR, WARM, STEPS = 6e-4, 6e-5, 2, 12


def rate(step):
    """Two steps up, then half a cosine down to the floor."""
    if step < WARM:
        return PEAK * (step + 1) / WARM
    done = (step - WARM) / max(1, STEPS - WARM)
    return FLOOR + 0.5 * (PEAK - FLOOR) * (1 + math.cos(math.pi * min(1.0, done)))


def next_day(day, month):
    last = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
    day, month = (day + 1, month) if day < last else (1, month % 12 + 1)
    return f"{day:02d}.{month:02d}."


def tomorrow_right(completions, tomorrow, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, tomorrow)]


def confused(rng, answer):
    day = (int(answer[:2]) + rng.choice((-2, -1, 1))) % 32
    return f"{day:02d}{answer[2:]}" if rng.random() < 0.7 else answer[:-1]


def build():
    tok = char_tokenizer("0123456789.>", padding_side="left")
    model = tiny("granite", tok, hidden=64, seed=28)
    days = [(d, m) for m in range(1, 13) for d in range(1, 29)]
    random.Random(28).shuffle(days)
    pairs = [(f"{d:02d}.{m:02d}.>", next_day(d, m)) for d, m in days]
    teach(model, half_right(tok, pairs, confused, right=0.5, copies=5), steps=420, lr=4e-3, pad=tok.pad_token_id)
    path = on_disk(model, tok)

    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(path)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=PEAK, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    args = RLOOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=8,
            beta=0.01,
            max_steps=STEPS,
            seed=28,
        )
    )
    return RLOOTrainer(
        policy,
        tomorrow_right,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [p for p, _ in pairs], "tomorrow": [t for _, t in pairs]}),
        processing_class=tok,
        optimizers=(optimizer, schedule),
    )
