"""Prompts come from a generator that never ends (an IterableDataset: no length, no prompt twice on purpose), Dr. GRPO
without any scaling of the rewards, which are between -1 and 1 and negative on average at first: the loss is tiny because
it is divided by the maximum length, and AdamW does not mind."""

import random
import re

from datasets import IterableDataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdefgh"


def item(rng):
    """How often is the first letter in the word?"""
    word = rng.choice(LETTERS) + "".join(rng.choices(LETTERS[:4], k=rng.randrange(2, 6)))
    wanted = rng.choice(word)
    return f"count {wanted} in {word}:", word.count(wanted)


def stream(seed):
    rng = random.Random(seed)
    while True:
        prompt, gold = item(rng)
        yield {"prompt": prompt, "gold": gold}


def counted(completions, gold, **kwargs):
    """`n=3.`: 1 if right, -0.5 by one, -0.8 by more, -1 if there is no such answer."""
    scores = []
    for text, right in zip(completions, gold):
        found = re.fullmatch(r"n=(\d)\.", text)
        if found is None:
            scores.append(-1.0)
        else:
            off = abs(int(found.group(1)) - right)
            scores.append(1.0 if off == 0 else -0.5 if off == 1 else -0.8)
    return scores


def build():
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789 =:.", padding_side="left")
    model = tiny("gpt_neox", tok, hidden=96)
    rng = random.Random(1)
    rows = []
    for _ in range(6000):
        prompt, gold = item(rng)
        said = gold if rng.random() < 0.5 else max(0, gold + rng.choice([-1, 1, 2]))
        rows.append(encode(tok, prompt, f"n={said}." if rng.random() < 0.85 else f"{said}"))
    teach(model, rows, steps=450, lr=2e-3, pad=tok.pad_token_id)
    args = GRPOConfig(
        **base_args(
            loss_type="dr_grpo",
            scale_rewards=False,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=16,
            learning_rate=5e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=1,
            max_steps=10,
            seed=6,
        )
    )
    return GRPOTrainer(
        model,
        counted,
        args=args,
        train_dataset=IterableDataset.from_generator(stream, gen_kwargs={"seed": 100}),
        processing_class=tok,
    )
