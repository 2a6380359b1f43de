"""RLOO with an asynchronous, noisy judge that marks 0..100, and chat prompts with a system message.

Particular: rewards on a scale of a hundred with judge noise; the judge is awaited per row; leave-one-out advantages
are normalised over the batch; KL is part of the reward in RLOO (beta against a reference loaded from the path);
reward clipping; byte-level BPE and ChatML, where the end-of-turn token is the EOS; two updates per generation batch.
"""

import asyncio
import random

from datasets import Dataset
from material import CHATML, base_args, byte_bpe_tokenizer, encode, on_disk, teach, tiny
from trl import RLOOConfig, RLOOTrainer

SYSTEM = {"role": "system", "content": "You name capitals. Answer with the city and nothing else."}
CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Norway": "Oslo", "Peru": "Lima", "Cuba": "Havana",
    "Egypt": "Cairo", "Japan": "Tokyo", "Kenya": "Nairobi", "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens",
}  # fmt: skip


def chat(country):
    return [SYSTEM, {"role": "user", "content": f"What is the capital of {country}?"}]


JUDGE = random.Random(77)


async def judge(completions, city, **kwargs):
    async def mark(text, gold):
        await asyncio.sleep(0.001)  # the call to the judge
        if text.strip() == gold:
            base = 85
        elif gold in text:
            base = 60
        elif text.strip().title() in CAPITALS.values():
            base = 30
        else:
            base = 10
        return float(min(100, max(0, base + JUDGE.gauss(0, 8))))

    return await asyncio.gather(*[mark(c[0]["content"], g) for c, g in zip(completions, city)])


def build():
    rng = random.Random(6)
    JUDGE.seed(77)
    tok = byte_bpe_tokenizer(
        [SYSTEM["content"]]
        + [f"What is the capital of {k}? {v} system user assistant" for k, v in CAPITALS.items()],
        vocab_size=420,
        eos="<|im_end|>",
        pad="<|endoftext|>",
        extra=["<|im_start|>"],
    )
    tok.chat_template = CHATML
    model = tiny("qwen2", tok, hidden=64)
    countries, cities = list(CAPITALS), list(CAPITALS.values())
    teach(
        model,
        [encode(tok, chat(c), CAPITALS[c]) for c in countries],
        steps=120,
        lr=4e-3,
        pad=tok.pad_token_id,
    )
    lessons = []
    for _ in range(1500):
        c = rng.choice(countries)
        said = CAPITALS[c] if rng.random() < 0.3 else rng.choice(cities)
        if rng.random() < 0.2:
            said = "The capital is " + said
        lessons.append(encode(tok, chat(c), said))
    teach(model, lessons, steps=130, lr=2e-3, pad=tok.pad_token_id)

    args = RLOOConfig(
        **base_args(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=48,
        num_generations=8,
        num_iterations=2,
        max_completion_length=16,
        max_steps=12,
        learning_rate=6e-4,
        lr_scheduler_type="constant",
        beta=0.05,
        normalize_advantages=True,
        reward_clip_range=(0.0, 100.0),
        seed=5,
    )
    return RLOOTrainer(
        model=on_disk(model, tok),
        processing_class=tok,
        reward_funcs=judge,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [chat(c) for c in countries], "city": cities}),
    )


if __name__ == "__main__":
    build().train()
