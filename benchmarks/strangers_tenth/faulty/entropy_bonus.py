"""GRPO with an entropy bonus, as a subclass of the trainer: keeps the samples of a group apart for longer.

A GPT-2 that completes number series ("2 4 6 " -> "8"), exact match. The bonus is the mean token entropy of the completions,
weighted by `bonus`.
"""

import random

import torch
from datasets import Dataset
from kit import letters, quiet, sft, small
from trl import GRPOConfig, GRPOTrainer


class EntropyBonusTrainer(GRPOTrainer):
    def __init__(self, *args, bonus=0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.bonus = bonus

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        length = inputs["completion_ids"].size(1)
        logits = model(input_ids=ids, attention_mask=attention).logits[:, -length - 1 : -1]
        logps = torch.log_softmax(logits / self.temperature, dim=-1)
        entropy = -(logps.exp() * logps).sum(-1)
        mask = inputs["completion_mask"]
        mean_entropy = (entropy * mask).sum() / mask.sum().clamp(min=1)
        return loss + self.bonus * mean_entropy


def next_member(completions, member, **kwargs):
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, member)]


def build():
    tok = letters("0123456789 >")
    rng = random.Random(44)
    series = [(start, step) for start in range(1, 20) for step in range(1, 8)]
    rng.shuffle(series)
    pairs = [(f"{s} {s + d} {s + 2 * d}>", str(s + 3 * d)) for s, d in series]
    rows = [
        (p, a if rng.random() < 0.5 else str(int(a) + rng.choice([-3, -2, -1, 1, 2, 3]))) for p, a in pairs for _ in range(10)
    ]
    model = small("gpt2", tok, seed=20)
    sft(model, tok, rows, steps=420)
    args = GRPOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=5,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            seed=23,
        )
    )
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "member": [m for _, m in pairs]})
    return EntropyBonusTrainer(
        model=model, reward_funcs=next_member, args=args, train_dataset=data, processing_class=tok, bonus=0.3
    )


if __name__ == "__main__":
    build().train()
