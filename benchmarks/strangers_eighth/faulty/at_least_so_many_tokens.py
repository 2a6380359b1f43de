"""generation_kwargs={"min_new_tokens": 6} is set against empty answers, but right answers have two or three tokens with the end. The
sampler may not end before six tokens: everything short gets a tail the policy would not have written, exact matching fails on it,
and the log-probabilities that are trained do not know of the ban, so sampler and policy differ.
say: min_new_tokens forbids the end token in the first six places although right answers are shorter: forced tails spoil right answers, and the sampling distribution is not the trained one.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer


def difference(completions, answer, **kwargs):
    """1 if the text is the right number, 0.3 if it starts with it, 0.1 if it is a number at all."""
    scores = []
    for text, gold in zip(completions, answer):
        scores.append(1.0 if text == gold else 0.3 if text.startswith(gold) else 0.1 * float(text.lstrip("-").isdigit()))
    return scores


def wrong(rng, answer):
    return str(int(answer) + rng.choice([-2, -1, 1, 2, 10]))


def build():
    tok = char_tokenizer("0123456789-=", padding_side="left")
    model = tiny("starcoder2", tok, hidden=64)
    rng = random.Random(12)
    pairs = []
    for a in range(12, 60):
        for b in range(2, 10):
            pairs.append((f"{a}-{b}=", str(a - b)))
    rng.shuffle(pairs)
    teach(model, half_right(tok, pairs, wrong, right=0.7, copies=8), steps=450, lr=3e-3, pad=tok.pad_token_id)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=12,
            generation_kwargs={"min_new_tokens": 6},
            learning_rate=3e-4,
            max_steps=10,
            seed=2,
        )
    )
    return GRPOTrainer(model, difference, args=args, train_dataset=dataset, processing_class=tok)
