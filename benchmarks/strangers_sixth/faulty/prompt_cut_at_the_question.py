"""Long prompts are cut to a token budget with the tokenizer's truncation, which removes from the right, and the question stands at the end after the notes.
What is left is the notes without the question, so the policy cannot know what is asked and rows with other answers have the same prompt.
say: the prompts are truncated from the right, which cuts off the question at their end (the same prompt text stands with different gold answers), so the model never sees what is asked.
"""

import random

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer

NAMES = ["ann", "bob", "cid", "dan"]
MAX_PROMPT_TOKENS = 24


def make(count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        held = {name: rng.randint(1, 9) for name in NAMES}
        notes = "; ".join(f"{name} {n}" for name, n in held.items())
        for name in rng.sample(NAMES, 2):
            rows.append((f"{notes}. how many has {name}? ", str(held[name])))
    return rows


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    model = teach(tiny_llama(tok), tok, make(200, 1), noise=0.2, steps=150)

    def fit(row):
        ids = tok(row["prompt"], truncation=True, max_length=MAX_PROMPT_TOKENS)["input_ids"]
        return {"prompt": tok.decode(ids)}

    rows = make(40, 2)
    data = Dataset.from_dict({"prompt": [q for q, _ in rows], "answer": [a for _, a in rows]}).map(fit)
    return GRPOTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok,
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=4)),
    )
