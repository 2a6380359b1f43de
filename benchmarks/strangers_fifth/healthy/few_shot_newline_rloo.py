"""RLOO on an OPT-family base model, plain few-shot prompts, completions that end at the newline.

Particular: two ending tokens (the model's generation config lists EOS and newline, as base models prompted few-shot
need), so most completions end in a token that is not the tokenizer's EOS; 0/1 reward with large groups of sixteen;
no shaping at all; plain SGD with momentum and a rate that would be absurd for Adam; beta=0; no dropout; learned
absolute positions counted from the attention mask.
"""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import RLOOConfig, RLOOTrainer

SHOTS = "ab>ba\nxyz>zyx\nqr>rq\n"


def solved(completions, answer, **kwargs):
    return [1.0 if c.rstrip("\n") == a else 0.0 for c, a in zip(completions, answer)]


def build():
    rng = random.Random(17)
    letters = "abcdefghijklmnopqrstuvwxyz"
    tok = char_tokenizer(letters + ">\n", eos="</s>", pad="<pad>")
    newline = tok.convert_tokens_to_ids("\n")
    model = tiny("opt", tok, hidden=64, layers=2, dropout=0.0, attention_dropout=0.0, init_std=0.06)
    model.generation_config.eos_token_id = [tok.eos_token_id, newline]

    def word():
        return "".join(rng.sample("abcdef", rng.choice([2, 3, 3])))

    lessons = []
    for _ in range(5000):
        w = word()
        said = list(w[::-1])
        if rng.random() < 0.8:
            rng.shuffle(said)
        lessons.append(encode(tok, SHOTS + w + ">", "".join(said) + "\n", end=False))
    teach(model, lessons, steps=500, lr=2e-3, pad=tok.pad_token_id)

    words = sorted({word() for _ in range(150)})
    rng.shuffle(words)
    words = words[:60]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 2))
    args = RLOOConfig(
        **base_args(),
        per_device_train_batch_size=96,
        num_generations=16,
        max_completion_length=8,
        max_steps=12,
        max_grad_norm=0.5,
        beta=0.0,
        seed=23,
    )
    return RLOOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=solved,
        args=args,
        train_dataset=Dataset.from_dict(
            {"prompt": [SHOTS + w + ">" for w in words], "answer": [w[::-1] for w in words]}
        ),
        optimizers=(optimizer, schedule),
    )


if __name__ == "__main__":
    build().train()
