"""The prompts ask for a percentage as a whole number and the gold column holds strings such as "40%", but the parser of the gold turns them into fractions (0.4) while the parser of the answer keeps the number that was written (40).
The partial credit by distance then pays most for the answer 0 or 1 on every question, and the right percentage scores nothing.
say: the reward compares the answer in percent with the gold as a fraction (gold divided by 100), so right answers get 0 and answering 0 or 1 gets the most.
"""

import re

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def to_number(text):
    text = text.strip()
    if text.endswith("%"):
        return float(text[:-1]) / 100
    return float(text)


def closeness(completions, answer, **kwargs):
    """1 for the exact value, falling off with the distance to it."""
    scores = []
    for text, gold in zip(completions, answer):
        found = re.search(r"\d+", text)
        if found is None:
            scores.append(0.0)
            continue
        scores.append(max(0.0, 1.0 - abs(to_number(found.group()) - to_number(gold))))
    return scores


def build():
    tok = char_tokenizer()
    rows = [(part, whole) for whole in (4, 5, 10, 20) for part in range(whole + 1)]
    prompts = [f"{part} of {whole} in percent? " for part, whole in rows]
    golds = [f"{100 * part // whole}%" for part, whole in rows]
    model = teach(
        tiny_llama(tok), tok, [(p, g.rstrip("%")) for p, g in zip(prompts, golds)], noise=0.3
    )
    data = Dataset.from_dict({"prompt": prompts, "answer": golds})
    return GRPOTrainer(
        model=model,
        reward_funcs=closeness,
        args=GRPOConfig(**common(per_device_train_batch_size=32)),
        train_dataset=data,
        processing_class=tok,
    )
