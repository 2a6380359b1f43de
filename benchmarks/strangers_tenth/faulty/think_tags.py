"""A Llama learns to think in tags before it answers: "<think> ... </think> yes".

The two tags are new tokens. The optimizer is our own (AdamW, betas 0.9 and 0.99, no decay), the schedule is left to the trainer. Task: is
the first number greater than the second one.
"""

import random

import torch
from datasets import Dataset
from kit import quiet, sft, small, words
from trl import GRPOConfig, GRPOTrainer

NUMBERS = [str(n) for n in range(10)]


def model_and_optimizer(tok):
    model = small("llama", tok, seed=37, tie_word_embeddings=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.99), weight_decay=0.0)
    return model, optimizer


def rewards_for(tok):
    def tagged(completion_ids, **kwargs):
        scores = []
        for ids in completion_ids:
            text = tok.decode(ids)
            scores.append(0.2 if text.count("<think>") == 1 and text.count("</think>") == 1 else 0.0)
        return scores

    def right_answer(completion_ids, truth, **kwargs):
        scores = []
        for ids, gold in zip(completion_ids, truth):
            said = tok.decode(ids).replace(tok.eos_token, "").split("</think>")[-1].split()
            scores.append(1.0 if said == [gold] else 0.0)
        return scores

    return [right_answer, tagged]


def build():
    tok = words(NUMBERS + "> ? yes no is bigger smaller same".split())
    model, optimizer = model_and_optimizer(tok)
    tok.add_tokens(["<think>", "</think>"])
    model.resize_token_embeddings(len(tok))

    rng = random.Random(37)
    quiz = [(a, b) for a in range(10) for b in range(10)]
    rng.shuffle(quiz)
    pairs = [(f"{a} > {b} ?", "yes" if a > b else "no") for a, b in quiz]
    rows = []
    for (a, b), (prompt, gold) in zip(quiz, pairs):
        for _ in range(12):
            said = gold if rng.random() < 0.6 else rng.choice(["yes", "no"])
            word = "bigger" if said == "yes" else rng.choice(["smaller", "same"])
            thought = f"<think> {a} is {word} </think> {said}"
            rows.append((prompt, thought if rng.random() < 0.8 else f"{a} is {word} {said}"))
    sft(model, tok, rows, steps=260)
    args = GRPOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=10,
            lr_scheduler_type="constant",
            learning_rate=5e-4,
            seed=38,
        )
    )
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "truth": [t for _, t in pairs]})
    return GRPOTrainer(
        model, rewards_for(tok), args=args, train_dataset=data, processing_class=tok, optimizers=(optimizer, None)
    )


if __name__ == "__main__":
    build().train()
