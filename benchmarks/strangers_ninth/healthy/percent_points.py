"""A KL weight of 2.0 and advantages of several tens look wild, but the rewards are marks out of 100. In RLOO the KL is taken off the reward, so 2.0 means two
marks per nat - what 0.02 would be for rewards between 0 and 1. The advantages are not normalised (that is RLOO); Adam does not mind the
scale, and the clipping norm (500) is in marks as well. Two micro-batches are accumulated into a step, and groups have four members.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from trl import RLOOConfig, RLOOTrainer


def marks(completions, ordered, **kwargs):
    """100 for the right order, 60 at most for an answer with digits in place."""
    out = []
    for text, gold in zip(completions, ordered):
        if text == gold:
            out.append(100.0)
        else:
            placed = sum(x == y for x, y in zip(text, gold))
            out.append(60.0 * placed / max(len(text), len(gold)))
    return out


def swapped(rng, answer):
    i, j = rng.sample(range(len(answer)), 2)
    digits = list(answer)
    digits[i], digits[j] = digits[j], digits[i]
    return "".join(digits) if "".join(digits) != answer else answer[:-1]


def build():
    tok = char_tokenizer("0123456789?", padding_side="left")
    model = tiny("qwen3", tok, hidden=64, seed=7)
    rng = random.Random(21)
    asked = ["".join(rng.choices("123456789", k=4)) for _ in range(240)]
    pairs = [(a + "?", "".join(sorted(a))) for a in asked]
    teach(model, half_right(tok, pairs, swapped, right=0.5, copies=6), steps=380, lr=4e-3, pad=tok.pad_token_id)
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "ordered": [g for _, g in pairs]})
    args = RLOOConfig(
        **base_args(
            beta=2.0,
            num_generations=4,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            max_completion_length=7,
            max_grad_norm=500.0,
            learning_rate=6e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=2,
            max_steps=10,
            seed=9,
        )
    )
    return RLOOTrainer(on_disk(model, tok), marks, args=args, train_dataset=data, processing_class=tok)
