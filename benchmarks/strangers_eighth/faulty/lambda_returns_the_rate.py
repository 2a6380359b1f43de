"""The own schedule is a LambdaLR whose function returns the learning rate itself (5e-4 falling in a cosine). LambdaLR multiplies what
the function returns with the optimizer's rate, which is 5e-4 already: the real rate is at most 2.5e-7, two thousand times too
small, and the weights do not move.
say: The function given to LambdaLR must return a factor, but returns the absolute rate, so the effective learning rate is lr squared (about 2.5e-7), far too small.
"""

import math
import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer

STEPS, PEAK, FLOOR = 12, 5e-4, 5e-5


def rate(step):
    """A cosine from PEAK to FLOOR after two steps of warm-up."""
    if step < 2:
        return PEAK * (step + 1) / 2
    share = (step - 2) / (STEPS - 2)
    return FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * share))


def double(completions, answer, **kwargs):
    """1 for the word with every letter doubled, otherwise 0.4 of the part that is right from the left."""
    scores = []
    for text, gold in zip(completions, answer):
        good = 0
        while good < min(len(text), len(gold)) and text[good] == gold[good]:
            good += 1
        scores.append(1.0 if text == gold else 0.4 * good / len(gold))
    return scores


def wrong(rng, answer):
    i = rng.randrange(len(answer))
    return answer[:i] + answer[i + 1 :] if rng.random() < 0.5 else answer[:i] + rng.choice("pqrst") + answer[i + 1 :]


def build():
    tok = char_tokenizer("pqrst!", padding_side="left")
    model = tiny("phi3", tok, hidden=64)
    rng = random.Random(9)
    words = ["".join(rng.choice("pqrst") for _ in range(3)) for _ in range(110)]
    pairs = [(f"{w}!", "".join(c + c for c in w)) for w in words]
    teach(model, half_right(tok, pairs, wrong, right=0.4), steps=260, lr=3e-3, pad=tok.pad_token_id)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=rate)
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=9,
            max_steps=STEPS,
            seed=1,
        )
    )
    return GRPOTrainer(
        model, double, args=args, train_dataset=dataset, processing_class=tok, optimizers=(optimizer, scheduler)
    )
