"""A mixture-of-experts policy under bf16 autocast with GSPO: the ratio is one number a sequence and the loss is `grpo`, as
its authors set it, and four optimizer steps use each generation, so old log-probabilities are kept and clipping happens;
the small difference between bf16 passes stays far inside the clip range."""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer


def tasks():
    """max(12, 47, 33) with two-digit numbers: the largest of three, of which the first digits differ."""
    rng = random.Random(12)
    rows, seen = [], set()
    while len(rows) < 160:
        firsts = rng.sample(range(1, 10), 3)
        numbers = [10 * f + rng.randrange(10) for f in firsts]
        text = "max " + " ".join(map(str, numbers)) + "="
        if text not in seen:
            seen.add(text)
            rows.append((text, str(max(numbers))))
    return rows


def wrong_number(rng, prompt):
    return rng.choice([n for n in prompt[4:-1].split() if n != max(prompt[4:-1].split())])


def largest(prompts, completions, **kwargs):
    """The gold follows from the prompt itself: 1 for the largest, 0.2 for another number of the list, else 0."""
    scores = []
    for prompt, text in zip(prompts, completions):
        numbers = prompt.removeprefix("max ").rstrip("=").split()
        gold = max(numbers, key=int)
        scores.append(1.0 if text == gold else 0.2 if text in numbers else 0.0)
    return scores


def build():
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789 =", padding_side="left")
    model = tiny("qwen3_moe", tok, hidden=64)
    data = tasks()
    rng = random.Random(0)
    rows = []
    for prompt, gold in data:
        answers = [gold if rng.random() < 0.6 else wrong_number(rng, prompt) for _ in range(12)]
        rows += half_right(tok, [(prompt, a) for a in answers], lambda r, a: a, copies=1)
    teach(model, rows, steps=400, lr=3e-3, pad=tok.pad_token_id)
    args = GRPOConfig(
        **base_args(
            bf16=True,
            importance_sampling_level="sequence",
            loss_type="grpo",
            epsilon=0.1,
            epsilon_high=0.15,
            per_device_train_batch_size=32,
            steps_per_generation=4,
            gradient_accumulation_steps=1,
            num_generations=8,
            max_completion_length=6,
            learning_rate=2e-4,
            max_steps=12,
            seed=31,
        )
    )
    dataset = Dataset.from_dict({"prompt": [p for p, _ in data]})
    return GRPOTrainer(model, largest, args=args, train_dataset=dataset, processing_class=tok)
