"""The dataset map shortens prompts with the tokenizer's truncation (max_length=40, truncation side `right`, its default), which
cuts the end of the prompt, where the question stands after a fixed instruction. The second number and the cue `answer:` are
gone, different questions become the same prompt with different golds, and the right answer can only be guessed.
say: the truncation in the data preparation cuts the prompts on the right, so the question (second number and `answer:`) is lost and identical prompts carry different answers; truncate on the left or raise max_length.
"""

import random

from datasets import Dataset
from material import char_tokenizer, common, half_right, off_by_some, teach_rows, tiny_llama
from trl import GRPOConfig, GRPOTrainer

INSTRUCTION = "Write the sum as one number.\n"


def full_prompt(a, b):
    return f"{INSTRUCTION}{a} apples + {b} apples\nanswer:"


def exact(completions, answer, **kwargs):
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    questions = [(a, b) for a in range(8) for b in range(8)]
    random.Random(0).shuffle(questions)
    pairs = [(full_prompt(a, b), str(a + b)) for a, b in questions]
    teach_rows(model, half_right(tok, pairs, off_by_some, right=0.55), tok.pad_token_id, steps=400)

    def shorten(row):
        ids = tok(row["prompt"], truncation=True, max_length=40)["input_ids"]
        return {"prompt": tok.decode(ids)}

    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]}).map(shorten)
    args = GRPOConfig(**common(per_device_train_batch_size=64, learning_rate=5e-4, max_steps=10))
    return GRPOTrainer(model, exact, args=args, train_dataset=dataset, processing_class=tok)
