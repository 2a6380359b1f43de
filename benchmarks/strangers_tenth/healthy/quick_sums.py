"""GPT-2 on sums of two numbers below 10, prompts as plain strings.

Two rewards: the right sum (weight 1.0) and an answer that is nothing but digits (weight 0.25). Everything else is left where
TRL puts it (DAPO loss, no KL); the learning rate is high because the model has some hundred thousand weights and ten steps.
"""

import random

from datasets import Dataset
from kit import letters, mixed, quiet, sft, small
from trl import GRPOConfig, GRPOTrainer


def right_sum(completions, total, **kwargs):
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, total)]


def only_digits(completions, **kwargs):
    return [1.0 if text.strip().isdigit() else 0.0 for text in completions]


def near_miss(rng, answer):
    if rng.random() < 0.6:
        return answer + rng.choice("+=")
    return str(max(0, int(answer) + rng.choice([-2, -1, 1, 2])))


def build():
    tok = letters("0123456789+= ")
    model = small("gpt2", tok, seed=11)
    rng = random.Random(4)
    sums = [(a, b) for a in range(10) for b in range(10)]
    rng.shuffle(sums)
    pairs = [(f"{a}+{b}=", str(a + b)) for a, b in sums]
    sft(model, tok, mixed(pairs, near_miss, share=0.45, times=14), steps=400)
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "total": [t for _, t in pairs]})
    args = GRPOConfig(
        **quiet(
            max_steps=10,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=6,
            learning_rate=5e-4,
            lr_scheduler_type="linear",
            reward_weights=[1.0, 0.25],
            seed=5,
        )
    )
    return GRPOTrainer(model=model, reward_funcs=[right_sum, only_digits], args=args, train_dataset=data, processing_class=tok)


if __name__ == "__main__":
    build().train()
