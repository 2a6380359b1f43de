"""RLOO on Roman numerals with a small OPT, settings carried over from our large runs.

Prompt "14>" and gold "xiv"; exact match gets 1.0, the right beginning a part of it. A light KL in the reward.
"""

import random

from datasets import Dataset
from kit import letters, mixed, quiet, saved, sft, small
from trl import RLOOConfig, RLOOTrainer


def roman(number):
    out = ""
    for value, sign in ((50, "l"), (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")):
        while number >= value:
            out, number = out + sign, number - value
    return out


def numeral(completions, gold, **kwargs):
    scores = []
    for text, want in zip(completions, gold):
        text = text.strip()
        if text == want:
            scores.append(1.0)
            continue
        same = 0
        for x, y in zip(text, want):
            if x != y:
                break
            same += 1
        scores.append(0.4 * same / max(len(want), len(text), 1))
    return scores


def blunder(rng, answer):
    if rng.random() < 0.5 and len(answer) > 1:
        where = rng.randrange(len(answer))
        return answer[:where] + answer[where + 1 :]
    return answer + rng.choice("ivx")


def build():
    tok = letters("0123456789>ivxl")
    pairs = [(f"{n}>", roman(n)) for n in range(1, 80)]
    model = small("opt", tok, seed=1)
    sft(model, tok, mixed(pairs, blunder, share=0.5, times=14), steps=400)
    random.Random(9).shuffle(pairs)
    args = RLOOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=10,
            learning_rate=4e-4,
            lr_scheduler_type="cosine",
            warmup_steps=500,
            weight_decay=0.01,
            beta=0.02,
            seed=21,
        )
    )
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "gold": [g for _, g in pairs]})
    return RLOOTrainer(saved(model, tok), numeral, args=args, train_dataset=data, processing_class=tok)


if __name__ == "__main__":
    build().train()
