"""`<answer>` and `</answer>` were registered as additional special tokens so that each is one token. The texts which the trainer
gives to reward functions are decoded with skip_special_tokens=True, so the tags are never in them: the accuracy reward, which
looks between the tags, is 0 for every completion however right it is, and only the small style reward trains the policy.
say: The answer tags are special tokens and are dropped when the completions are decoded for the reward (skip_special_tokens), so the regular expression of the accuracy reward never matches.
"""

import random
import re

from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer


def between_tags(completions, answer, **kwargs):
    """2 if the right number stands between the tags."""
    scores = []
    for text, gold in zip(completions, answer):
        found = re.search(r"<answer>\s*(\d+)\s*</answer>", text)
        scores.append(2.0 if found and found.group(1) == gold else 0.0)
    return scores


def shows_work(completions, **kwargs):
    """Up to 0.3 for steps written out before the answer."""
    return [min(0.3, 0.1 * text.count("+")) for text in completions]


def build():
    tok = char_tokenizer("0123456789x+=?;", extra=["<answer>", "</answer>"], padding_side="left")
    model = tiny("llama", tok, hidden=64)
    rng = random.Random(3)
    questions = [(a, b) for a in range(2, 10) for b in range(2, 6)]
    rows = []
    for a, b in questions:
        for _ in range(16):
            steps = b if rng.random() < 0.7 else rng.randrange(1, 6)
            work = "+".join([str(a)] * steps)
            said = a * b if rng.random() < 0.6 else a * b + rng.choice([-1, 1, a, -a])
            rows.append(encode(tok, f"{a}x{b}?", f"{work};<answer>{said}</answer>"))
    teach(model, rows, steps=280, lr=3e-3, pad=tok.pad_token_id)
    rng.shuffle(questions)
    dataset = Dataset.from_dict(
        {"prompt": [f"{a}x{b}?" for a, b in questions], "answer": [str(a * b) for a, b in questions]}
    )
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=20,
            learning_rate=4e-4,
            max_steps=10,
        )
    )
    return GRPOTrainer(model, [between_tags, shows_work], args=args, train_dataset=dataset, processing_class=tok)
