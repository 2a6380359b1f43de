"""GRPO for a till: "3 x 1,250 =" is to be answered with the price as it stands on a tag, with commas for the thousands.

A small Qwen2, plain prompts. The answer may stand in a sentence, so the last number of the text is compared with the last number
of the gold.
"""

import random
import re

from datasets import Dataset
from kit import letters, quiet, sft, small
from trl import GRPOConfig, GRPOTrainer


def last_number(text):
    found = re.findall(r"-?\d+", text)
    return int(found[-1]) if found else None


def right_price(completions, price, **kwargs):
    scores = []
    for text, gold in zip(completions, price):
        value = last_number(text)
        scores.append(1.0 if value is not None and value == last_number(gold) else 0.0)
    return scores


def build():
    tok = letters("0123456789, x=total:")
    rng = random.Random(19)
    singles = rng.sample(range(410, 1400), 40)
    bills = [(n, each) for each in singles for n in (2, 3, 4, 5)]
    pairs = [(f"{n} x {each:,} =", f"{n * each:,}") for n, each in bills]
    rows = []
    for prompt, gold in pairs:
        value = int(gold.replace(",", ""))
        for _ in range(8):
            draw = rng.random()
            if draw < 0.4:
                said = value
            elif draw < 0.7:
                said = value + 1000 * rng.choice([-1, 1, 2, 3])
            else:
                said = value + rng.choice([-100, -10, 10, 5, 100])
            text = f"{max(said, 1):,}"
            rows.append((prompt, f"total: {text}" if rng.random() < 0.3 else text))
    model = small("qwen2", tok, seed=21)
    sft(model, tok, rows, steps=450)
    rng.shuffle(pairs)
    args = GRPOConfig(
        **quiet(
            max_steps=10,
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=16,
            learning_rate=4e-4,
            lr_scheduler_type="constant",
            seed=7,
        )
    )
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "price": [g for _, g in pairs]})
    return GRPOTrainer(model, right_price, args=args, train_dataset=data, processing_class=tok)


if __name__ == "__main__":
    build().train()
