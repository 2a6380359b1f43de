"""DAPO recipe on a sliding-window model: count from a to b.

Particular: Mistral with a sliding window shorter than the sequences; DAPO's soft overlong punishment next to a
continuous reward; clip-higher; mask_truncated_completions; a generation batch that feeds two optimizer steps
(steps_per_generation=4 with accumulation 2), so half of the updates are one step off-policy; top_p below 1; warm-up
then cosine.
"""

import random

from datasets import Dataset
from material import base_args, encode, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer

MAX_LENGTH, SOFT = 36, 12


def counting_reward(completions, first, last, **kwargs):
    """How far the list agrees with the wanted one from its start, as a share of the longer of the two."""
    scores = []
    for text, a, b in zip(completions, first, last):
        want, got = [str(n) for n in range(a, b + 1)], text.split()
        good = 0
        for w, g in zip(want, got):
            if w != g:
                break
            good += 1
        scores.append(good / max(len(want), len(got)))
    return scores


def soft_overlong_punishment(completion_ids, **kwargs):
    """DAPO, equation 13."""
    out = []
    for ids in completion_ids:
        n = len(ids)
        over = n - (MAX_LENGTH - SOFT)
        out.append(0.0 if over <= 0 else -over / SOFT if n <= MAX_LENGTH else -1.0)
    return out


def sloppy_count(rng, a, b):
    end = b if rng.random() < 0.5 else b + rng.randint(1, 14)
    numbers = list(range(a, end + 1))
    if rng.random() < 0.4:
        numbers.pop(rng.randrange(len(numbers)))
    return " ".join(str(n) for n in numbers)


def build():
    rng = random.Random(5)
    tok = word_tokenizer(["count", "from", "to", ":"] + [str(n) for n in range(0, 60)])
    model = tiny("mistral", tok, hidden=64, layers=3, sliding_window=12)
    spans = [(a, a + k) for a in range(0, 20) for k in range(5, 18)]
    rng.shuffle(spans)
    lessons = []
    for _ in range(2500):
        a, b = rng.choice(spans)
        lessons.append(encode(tok, f"count from {a} to {b} :", sloppy_count(rng, a, b)))
    teach(model, lessons, steps=260, lr=4e-3, pad=tok.pad_token_id)

    train = spans[:64]
    data = Dataset.from_dict(
        {
            "prompt": [f"count from {a} to {b} :" for a, b in train],
            "first": [a for a, _ in train],
            "last": [b for _, b in train],
        }
    )
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=8,
        max_completion_length=MAX_LENGTH,
        max_steps=12,
        learning_rate=8e-4,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        mask_truncated_completions=True,
        top_p=0.95,
        seed=11,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[counting_reward, soft_overlong_punishment],
        args=args,
        train_dataset=data,
    )


if __name__ == "__main__":
    build().train()
