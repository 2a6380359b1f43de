"""The two-turn rollout_func marks the environment's tokens with 0, but returns the marks under the key `completion_mask`, while TRL
only reads `env_mask`; an unknown key is silently handed to the reward function. The loss covers the environment's random receipts
as if the model had written them, and these improbable tokens dominate the gradient.
say: the rollout's mask is returned as `completion_mask` instead of `env_mask`, so TRL ignores it and trains on the environment's tokens in the completion.
"""

import random

import torch
from datasets import Dataset
from material import char_tokenizer, common, one_letter_wrong, teach_rows, tiny_llama, words
from trl import GRPOConfig, GRPOTrainer

SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def shifted(word):
    return "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in word)


def receipt(rng):
    """What the environment answers to a stored word."""
    return "#" + "".join(rng.choice(SYMBOLS) for _ in range(8)) + "#"


def turn(trainer, contexts, stop_ids, limit):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    width = max(map(len, contexts))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=limit,
            eos_token_id=stop_ids, pad_token_id=tok.pad_token_id, return_dict_in_generate=True, output_logits=True,
        )
    model.train()
    new = out.sequences[:, width:]
    logps = torch.stack(out.logits, 1).float().log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
    results = []
    for row, lps in zip(new.tolist(), logps.tolist()):
        n = next((i + 1 for i, t in enumerate(row) if t in stop_ids), len(row))
        results.append((row[:n], lps[:n]))
    return results


class StoreThenRecall:
    """Turn 1: the model stores a word (up to `;`). The store answers with a receipt. Turn 2: the model gives the code."""

    def __init__(self, seed=0):
        self.rng = random.Random(seed)

    def __call__(self, prompts, trainer):
        tok = trainer.processing_class
        semicolon = tok.convert_tokens_to_ids(";")
        prompt_ids = tok(prompts)["input_ids"]
        first = turn(trainer, prompt_ids, [semicolon, tok.eos_token_id], limit=5)
        receipts = [tok(receipt(self.rng))["input_ids"] for _ in prompts]
        contexts = [p + t + r for p, (t, _), r in zip(prompt_ids, first, receipts)]
        second = turn(trainer, contexts, [tok.eos_token_id], limit=6)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [a + r + b for (a, _), r, (b, _) in zip(first, receipts, second)],
            "logprobs": [a + [0.0] * len(r) + b for (_, a), r, (_, b) in zip(first, receipts, second)],
            "completion_mask": [[1] * len(a) + [0] * len(r) + [1] * len(b) for (a, _), r, (b, _) in zip(first, receipts, second)],
        }


def recalled(completions, answer, **kwargs):
    return [1.0 if text.split("#")[-1] == gold else 0.0 for text, gold in zip(completions, answer)]


def lesson(tok, seed=0):
    rng = random.Random(seed)
    rows = []
    for w in words(120, seed=9):
        for _ in range(15):
            head = tok(f"store {w}: ")["input_ids"]
            store = tok(w + ";")["input_ids"]
            rows.append((head, store))
            said = shifted(w) if rng.random() < 0.45 else one_letter_wrong(rng, shifted(w))
            rows.append((head + store + tok(receipt(rng))["input_ids"], tok(said)["input_ids"] + [tok.eos_token_id]))
    return rows


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    teach_rows(model, lesson(tok), tok.pad_token_id, steps=500)
    data = words(120, seed=9)
    dataset = Dataset.from_dict({"prompt": [f"store {w}: " for w in data], "answer": [shifted(w) for w in data]})
    args = GRPOConfig(**common(per_device_train_batch_size=64, learning_rate=3e-4, max_completion_length=24, max_steps=12))
    return GRPOTrainer(
        model, recalled, args=args, train_dataset=dataset, processing_class=tok, rollout_func=StoreThenRecall()
    )
