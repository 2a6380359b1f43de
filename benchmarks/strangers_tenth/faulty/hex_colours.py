"""Decimal to hexadecimal with a small Mistral: "200:" wants "c8".

The sampling settings come from the model card's generation_config. Two rewards, one for the value and one for the form (two
hexadecimal digits).
"""

import random
import re

from datasets import Dataset
from kit import letters, mixed, quiet, sft, small
from trl import GRPOConfig, GRPOTrainer

FROM_MODEL_CARD = {"temperature": 0.2, "top_p": 0.95, "repetition_penalty": 1.0}


def right_value(completions, code, **kwargs):
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, code)]


def form(completions, **kwargs):
    return [1.0 if re.fullmatch(r"[0-9a-f]{2}", text.strip()) else 0.0 for text in completions]


def slip(rng, answer):
    digits = "0123456789abcdef"
    if rng.random() < 0.15:
        return answer + rng.choice(digits)
    where = rng.randrange(2)
    changed = list(answer)
    changed[where] = digits[(digits.index(changed[where]) + rng.choice([-2, -1, 1, 2])) % 16]
    return "".join(changed)


def build():
    tok = letters("0123456789abcdef:")
    numbers = list(range(16, 256))
    random.Random(3).shuffle(numbers)
    pairs = [(f"{n}:", f"{n:02x}") for n in numbers]
    model = small("mistral", tok, seed=16)
    sft(model, tok, mixed(pairs, slip, share=0.5, times=6), steps=420)
    args = GRPOConfig(
        **quiet(
            max_steps=10,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=6,
            generation_kwargs=FROM_MODEL_CARD,
            reward_weights=[1.0, 0.25],
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            beta=0.0,
            seed=13,
        )
    )
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "code": [c for _, c in pairs]})
    return GRPOTrainer(model, [right_value, form], args=args, train_dataset=data, processing_class=tok)


if __name__ == "__main__":
    build().train()
