"""RLOO through a curriculum, with evaluation on the way.

Particular: the rows are ordered from easy to hard and not shuffled, and a callback makes the closeness reward stricter at
half time, so the reward may sink while the policy gets better; Cohere (parallel blocks, scaled logits, tied); temperature
0.7; evaluation every three steps with another group size on sums never trained on; KL inside the reward; advantages
normalised over the batch; two accumulation steps.
"""

import math
import random

from datasets import Dataset
from material import base_args, char_tokenizer, encode, on_disk, teach, tiny
from transformers import TrainerCallback
from trl import RLOOConfig, RLOOTrainer


class Closeness:
    """exp(-distance / width): the width is set from outside."""

    __name__ = "closeness"

    def __init__(self):
        self.width = 4.0

    def __call__(self, completions, total, log_metric=None, **kwargs):
        if log_metric:
            log_metric("exact", sum(c == str(t) for c, t in zip(completions, total)) / len(total))
        return [
            math.exp(-abs(int(c) - t) / self.width) if c.isdigit() and len(c) < 4 else 0.0
            for c, t in zip(completions, total)
        ]


def two_digits(completions, **kwargs):
    return [1.0 if len(c) == 2 and c.isdigit() else -1.0 for c in completions]


class Stricter(TrainerCallback):
    def __init__(self, reward):
        self.reward = reward

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == args.max_steps // 2:
            self.reward.width = 3.5


def build():
    rng = random.Random(50)
    tok = char_tokenizer("0123456789+= ")
    model = tiny("cohere", tok, hidden=64, layers=2, initializer_range=0.06, logit_scale=0.5)
    sums = [(a, b) for a in range(5, 15) for b in range(5, 15)]
    clean = [encode(tok, f"{a}+{b}=", str(a + b)) for a, b in sums]
    lessons = []
    for _ in range(4000):
        a, b = rng.choice(sums)
        said = max(0, a + b + rng.choice([0, 0, 0, 0, 1, -1, 2, -2, 5, -5]))
        lessons.append(encode(tok, f"{a}+{b}=", str(said) if rng.random() < 0.9 else str(said) + rng.choice("0123456789")))
    teach(model, clean, steps=250, lr=4e-3, pad=tok.pad_token_id, batch=48)
    teach(model, lessons, steps=80, lr=2e-3, pad=tok.pad_token_id, batch=48)

    rng.shuffle(sums)
    train = sorted(sums[:80], key=lambda s: s[0] + s[1])
    held = [s for s in sums[80:]][:16]

    def table(rows):
        return Dataset.from_list([{"prompt": f"{a}+{b}=", "total": a + b} for a, b in rows])

    closeness = Closeness()
    args = RLOOConfig(
        **base_args(),
        per_device_train_batch_size=128,
        per_device_eval_batch_size=32,
        num_generations=8,
        num_generations_eval=4,
        gradient_accumulation_steps=2,
        max_completion_length=5,
        max_steps=12,
        learning_rate=5e-4,
        lr_scheduler_type="polynomial",
        temperature=0.7,
        beta=0.02,
        normalize_advantages=True,
        shuffle_dataset=False,
        reward_weights=[1.0, 0.1],
        eval_strategy="steps",
        eval_steps=3,
        seed=51,
    )
    return RLOOTrainer(
        model=on_disk(model, tok),
        processing_class=tok,
        reward_funcs=[closeness, two_digits],
        args=args,
        train_dataset=table(train),
        eval_dataset=table(held),
        callbacks=[Stricter(closeness)],
    )


if __name__ == "__main__":
    build().train()
