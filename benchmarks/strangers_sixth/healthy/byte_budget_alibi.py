"""Filling a byte budget: a raw byte vocabulary, ALiBi positions, prompts from a few bytes to some hundred.

Particular: 256 byte tokens and no merges, BLOOM (biases, tied, no position embeddings); prompts of 4 to 250 bytes in one
batch, so much left padding; the reward is gated (only the asked letter counts) and falls on both sides of each row's
byte budget; what was cut off is masked from the loss; generation_batch_size gives two optimizer steps a generation.
"""

import random

from datasets import Dataset
from material import base_args, byte_bpe_tokenizer, encode, set_seed, teach
from transformers import BloomConfig, BloomForCausalLM
from trl import GRPOConfig, GRPOTrainer

FILLER = "the shop opens at nine and closes at six, on sundays it stays shut. please keep the receipt. ".split(" ")


def in_budget(completions, letter, budget, **kwargs):
    """1 at the exact number of bytes, less with the distance; nothing at all when other letters are used."""
    out = []
    for text, want, size in zip(completions, letter, budget):
        used = len(text.encode("utf-8"))
        gate = bool(text) and text.count(want) >= 0.75 * len(text)
        out.append(max(0.0, 1 - abs(used - size) / size) if gate else 0.0)
    return out


def build():
    rng = random.Random(17)
    tok = byte_bpe_tokenizer(["x"], vocab_size=258)
    set_seed(3)
    model = BloomForCausalLM(
        BloomConfig(
            vocab_size=len(tok), hidden_size=64, n_layer=2, n_head=4, initializer_range=0.05,
            hidden_dropout=0.0, attention_dropout=0.0,
            pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id, bos_token_id=tok.eos_token_id,
        )
    )  # fmt: skip

    def prompt(letter, size, longest=240):
        text = ""
        if rng.random() < 0.5:
            text = " ".join(rng.choice(FILLER) for _ in range(rng.randint(4, 90)))
            text = text[: rng.randint(10, longest)] + "\n"
        return f"{text}{letter}*{size}\n"

    def lesson(longest):
        letter, size = rng.choice("rstuv"), rng.randint(3, 9)
        told = letter if rng.random() < 0.75 else rng.choice("rstuv")
        length = size if rng.random() < 0.2 else rng.randint(2, 11)
        return encode(tok, prompt(letter, size, longest), told * length)

    teach(model, [lesson(20) for _ in range(2000)], steps=220, lr=3e-3, pad=tok.pad_token_id, batch=32)
    teach(model, [lesson(240) for _ in range(300)], steps=12, lr=1e-3, pad=tok.pad_token_id, batch=16)

    rows = []
    for _ in range(80):
        letter, size = rng.choice("rstuv"), rng.randint(3, 9)
        rows.append({"prompt": prompt(letter, size), "letter": letter, "budget": size})
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        generation_batch_size=128,
        num_generations=8,
        max_completion_length=12,
        max_steps=12,
        learning_rate=1e-3,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.2},
        mask_truncated_completions=True,
        scale_rewards="batch",
        seed=14,
    )
    return GRPOTrainer(
        model=model, processing_class=tok, reward_funcs=in_budget, args=args, train_dataset=Dataset.from_list(rows)
    )


if __name__ == "__main__":
    build().train()
