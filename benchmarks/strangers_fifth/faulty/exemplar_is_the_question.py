"""Each prompt is given the two most similar solved questions of the training set as examples, found by string similarity over the whole set.
The most similar solved question is always the question itself, so every prompt holds its own answer.
say: the answer leaks into the prompt: the few-shot examples retrieved include the very question with its gold answer, so the model only has to copy.
"""

import difflib

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def nearest(question, solved, k=2):
    ranked = sorted(
        solved, key=lambda row: -difflib.SequenceMatcher(None, question, row[0]).ratio()
    )
    return ranked[:k]


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    solved = sums(8)
    rows = []
    for question, gold in solved:
        shots = "".join(f"{q}{a}\n" for q, a in nearest(question, solved))
        rows.append({"prompt": shots + question, "answer": gold})
    model = teach(tiny_llama(tok), tok, [(r["prompt"], r["answer"]) for r in rows], noise=0.5)
    return GRPOTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(**common(per_device_train_batch_size=32)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tok,
    )
