"""Two subjects in one run. Each reward function answers None for the rows of the other subject, so a part of either column is empty; the trainer
leaves those out of the sum. A third function only reports the length of the answer: its weight is 0 on purpose, it is a gauge in the log. Sums are
marked 0/1, capitals 0/2 (they are few and matter more), so one subject has a different scale from the other - within a group there is only
ever one of them.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer

CAPITALS = {
    "france": "paris", "italy": "rome", "spain": "madrid", "peru": "lima", "cuba": "havana", "kenya": "nairobi",
    "egypt": "cairo", "ghana": "accra", "japan": "tokyo", "norway": "oslo", "chile": "santiago", "qatar": "doha",
}


def sum_right(completions, subject, gold, **kwargs):
    return [float(t == g) if s == "sum" else None for t, s, g in zip(completions, subject, gold)]


def capital_right(completions, subject, gold, **kwargs):
    return [2.0 * (t == g) if s == "capital" else None for t, s, g in zip(completions, subject, gold)]


def answer_length(completions, **kwargs):
    return [float(len(t)) for t in completions]


def misremembered(rng, answer):
    if answer.isdigit():
        return str(max(0, int(answer) + rng.choice((-2, -1, 1, 2))))
    return rng.choice([c for c in CAPITALS.values() if c != answer])


def build():
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789+=:", padding_side="left")
    model = tiny("mistral", tok, hidden=64, seed=1)
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(1, 10) for b in range(1, 10)]
    capitals = [(f"{c}:", t) for c, t in CAPITALS.items()]
    teach(
        model,
        half_right(tok, sums, misremembered, right=0.5, copies=10) + half_right(tok, capitals, misremembered, right=0.5, copies=40),
        steps=420,
        lr=4e-3,
        pad=tok.pad_token_id,
    )
    rows = [{"prompt": p, "gold": g, "subject": "sum"} for p, g in sums]
    rows += [{"prompt": p, "gold": g, "subject": "capital"} for p, g in capitals * 4]
    random.Random(0).shuffle(rows)
    args = GRPOConfig(
        **base_args(
            reward_weights=[1.0, 1.0, 0.0],
            per_device_train_batch_size=144,
            num_generations=8,
            max_completion_length=10,
            learning_rate=9e-4,
            beta=0.0,
            max_steps=12,
            lr_scheduler_type="cosine",
            seed=6,
        )
    )
    return GRPOTrainer(
        model, [sum_right, capital_right, answer_length], args=args, train_dataset=Dataset.from_list(rows), processing_class=tok
    )
