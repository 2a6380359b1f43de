"""A small Qwen2 chat model that writes its working and puts a product into \\boxed{}.

Conversational data with a system prompt; a reward for the value in the last box and a small one for exactly one box. Answers
that run out of room are left out of the loss (mask_truncated_completions), which happens to few of them.
"""

import random
import re

from datasets import Dataset
from kit import CHAT, mixed, pieces, quiet, sft, small
from trl import GRPOConfig, GRPOTrainer

SYSTEM = "Answer in a box."
BOX = re.compile(r"\\boxed\{(-?\d+)\}")


def text_of(completion):
    return completion[0]["content"]


def value_in_box(completions, product, **kwargs):
    scores = []
    for completion, gold in zip(completions, product):
        found = BOX.findall(text_of(completion))
        scores.append(1.0 if found and int(found[-1]) == gold else 0.0)
    return scores


def one_box(completions, **kwargs):
    return [0.1 if len(BOX.findall(text_of(c))) == 1 else 0.0 for c in completions]


def sloppy(rng, answer):
    value = int(BOX.search(answer).group(1))
    draw = rng.random()
    if draw < 0.15:
        return answer.replace("\\boxed{", "").replace("}", "")
    wrong = max(0, value + rng.choice([-9, -3, -1, 1, 2, 6]))
    return answer.replace(f"boxed{{{value}}}", f"boxed{{{wrong}}}")


def build():
    rng = random.Random(8)
    tables = [(a, b) for a in range(2, 9) for b in range(2, 9)]
    rng.shuffle(tables)
    pairs = []
    for a, b in tables:
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{a} times {b}?"}]
        pairs.append((chat, f"{a}*{b} so \\boxed{{{a * b}}}"))
    texts = [SYSTEM] + [c[1]["content"] + " " + a for c, a in pairs]
    tok = pieces(texts, size=330, extra=["<|system|>", "<|user|>", "<|assistant|>"])
    tok.chat_template = CHAT
    model = small("qwen2", tok, seed=3, tie_word_embeddings=True)
    sft(model, tok, mixed(pairs, sloppy, share=0.6, times=24), steps=420, lr=5e-3)
    data = Dataset.from_dict({"prompt": [c for c, _ in pairs], "product": [int(BOX.search(a).group(1)) for _, a in pairs]})
    args = GRPOConfig(
        **quiet(
            max_steps=10,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=28,
            mask_truncated_completions=True,
            learning_rate=8e-4,
            lr_scheduler_type="cosine",
            seed=12,
        )
    )
    return GRPOTrainer(model, [value_in_box, one_box], args=args, train_dataset=data, processing_class=tok)


if __name__ == "__main__":
    build().train()
