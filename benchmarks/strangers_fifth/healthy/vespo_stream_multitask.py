"""Two tasks from one stream, each scored by its own reward function, which returns None on the other's rows.

Particular: IterableDataset made from a generator; None rewards (every row is scored by exactly one of the two task
functions and by the shared format one); VESPO with two passes over each generation batch; min_p; batch-scaled rewards;
rows of very different prompt lengths in one batch (left padding); AdamW with weight decay.
"""

import random

from datasets import IterableDataset
from material import base_args, byte_bpe_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer

WORDS = "apple river stone cloud tiger lemon piano table green house night bread".split()


def reverse_row(rng):
    words = rng.sample(WORDS, rng.choice([2, 3, 4]))
    return {
        "prompt": "reverse the list: " + " ".join(words) + " ->",
        "task": "reverse",
        "gold": " ".join(words[::-1]),
    }


def count_row(rng):
    n = rng.randint(2, 9)
    return {
        "prompt": "how many words are there? "
        + " ".join(rng.choice(WORDS) for _ in range(n))
        + " ->",
        "task": "count",
        "gold": str(n),
    }


def row(rng):
    return reverse_row(rng) if rng.random() < 0.5 else count_row(rng)


def stream():
    rng = random.Random(99)
    while True:
        yield row(rng)


def reverse_reward(completions, task, gold, **kwargs):
    out = []
    for text, t, g in zip(completions, task, gold):
        if t != "reverse":
            out.append(None)
            continue
        said, want = text.split(), g.split()
        out.append(sum(a == b for a, b in zip(said, want)) / max(len(said), len(want)))
    return out


def count_reward(completions, task, gold, **kwargs):
    out = []
    for text, t, g in zip(completions, task, gold):
        said = text.strip()
        out.append(
            None
            if t != "count"
            else 1 - min(abs(int(said) - int(g)), 4) / 4
            if said.isdecimal()
            else 0.0
        )
    return out


def format_reward(completions, task, **kwargs):
    """A number for counting, words for reversing."""
    return [
        0.1 if c.strip().isdecimal() == (t == "count") else 0.0 for c, t in zip(completions, task)
    ]


def build():
    rng = random.Random(12)
    sample = [row(rng) for _ in range(4000)]
    tok = byte_bpe_tokenizer([r["prompt"] + " " + r["gold"] for r in sample], vocab_size=380)
    model = tiny("qwen3", tok, hidden=64, layers=2, initializer_range=0.06)
    lessons = []
    for r in sample:
        said = r["gold"]
        if rng.random() < 0.5:
            if r["task"] == "count":
                said = str(max(1, int(said) + rng.choice([-2, -1, 1, 2])))
            else:
                words = said.split()
                rng.shuffle(words)
                said = " ".join(words)
        lessons.append(encode(tok, r["prompt"], " " + said))
    teach(model, lessons, steps=350, lr=2e-3, pad=tok.pad_token_id)

    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=128,
        num_generations=8,
        num_iterations=2,
        max_completion_length=12,
        max_steps=12,
        learning_rate=7e-4,
        weight_decay=0.01,
        lr_scheduler_type="constant",
        loss_type="vespo",
        scale_rewards="batch",
        min_p=0.02,
        seed=13,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[reverse_reward, count_reward, format_reward],
        args=args,
        train_dataset=IterableDataset.from_generator(stream),
    )


if __name__ == "__main__":
    build().train()
