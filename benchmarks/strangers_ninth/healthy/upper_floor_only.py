"""The embeddings and the lower block are frozen on purpose (a common way of keeping a small checkpoint from drifting): only the upper block, the last norm and the
head are trained, and about half of the weights get no gradient. The optimizer is built by hand after the freezing, with the head at a
lower rate than the block and no weight decay on norms; its cosine ends at a tenth, not at zero. Each batch is used twice (num_iterations=2), which is what the clipping
is for, and the held-out hours are evaluated every five steps with the same sampling.
"""

import math
import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer

STEPS = 12


def half_day_later(clock):
    hour, minute = int(clock[:2]), clock[3:]
    return f"{(hour + 12) % 24:02d}:{minute}"


def exact(completions, later, **kwargs):
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, later)]


def shape(completions, **kwargs):
    """Looks like a time of day."""
    good = []
    for text in completions:
        parts = text.split(":")
        good.append(float(len(parts) == 2 and all(p.isdigit() and len(p) == 2 for p in parts) and int(parts[0]) < 24))
    return good


def wrong_hour(rng, answer):
    return f"{rng.randrange(30):02d}:{answer[3:]}" if rng.random() < 0.8 else answer.replace(":", "")


def build():
    tok = char_tokenizer("0123456789:~", padding_side="left")
    model = tiny("llama", tok, hidden=64, seed=8)
    pairs = [(f"{h:02d}:{m:02d}~", half_day_later(f"{h:02d}:{m:02d}")) for h in range(24) for m in range(0, 60, 5)]
    random.Random(5).shuffle(pairs)
    teach(model, half_right(tok, pairs, wrong_hour, right=0.5, copies=4), steps=380, lr=4e-3, pad=tok.pad_token_id)

    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    block = [p for n, p in model.named_parameters() if p.requires_grad and "lm_head" not in n and p.dim() > 1]
    norms = [p for n, p in model.named_parameters() if p.requires_grad and p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": block, "lr": 1.5e-3, "weight_decay": 0.01},
            {"params": norms, "lr": 1.5e-3, "weight_decay": 0.0},
            {"params": list(model.lm_head.parameters()), "lr": 4e-4, "weight_decay": 0.01},
        ],
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.1 + 0.45 * (1 + math.cos(math.pi * min(s, STEPS) / STEPS)))
    train, held_out = pairs[:256], pairs[256:]
    dataset = lambda part: Dataset.from_dict({"prompt": [p for p, _ in part], "later": [a for _, a in part]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            per_device_eval_batch_size=32,
            num_generations=8,
            num_iterations=2,
            max_completion_length=8,
            reward_weights=[1.0, 0.2],
            beta=0.0,
            eval_strategy="steps",
            eval_steps=5,
            max_steps=STEPS,
            seed=13,
        )
    )
    return GRPOTrainer(
        model,
        [exact, shape],
        args=args,
        train_dataset=dataset(train),
        eval_dataset=dataset(held_out),
        processing_class=tok,
        optimizers=(optimizer, schedule),
    )
