"""Every completion is "truncated": the answer is six bits, the limit is six tokens, and there is no end token at all in this format (the
decoder downstream reads exactly six). clipped_ratio is 1.0 and the mean terminated length 0 from the first step to the last, and that is how it has to be; truncated completions are
therefore not masked. An end token drawn early makes the answer too short, and so wrong, by itself.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from trl import GRPOConfig, GRPOTrainer

WIDTH = 6


def bits(n):
    return format(n, f"0{WIDTH}b")


def share_of_bits(completions, code, **kwargs):
    """Share of right bits, and a full point on top if all are."""
    out = []
    for text, gold in zip(completions, code):
        hits = sum(x == y for x, y in zip(text, gold))
        out.append(hits / WIDTH + (1.0 if text == gold else 0.0))
    return out


def flipped(rng, answer):
    i = rng.randrange(WIDTH)
    return answer[:i] + ("1" if answer[i] == "0" else "0") + answer[i + 1 :]


def build():
    tok = char_tokenizer("0123456789#", padding_side="left")
    model = tiny("gpt_neox", tok, hidden=64, seed=5)
    pairs = [(f"#{n:02d}#", bits(n)) for n in range(2**WIDTH)]
    rows = half_right(tok, pairs, flipped, right=0.5, copies=16, seed=2, end=False)
    teach(model, rows, steps=400, lr=4e-3, pad=tok.pad_token_id)
    random.Random(1).shuffle(pairs)
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "code": [c for _, c in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=120,
            num_generations=6,
            max_completion_length=WIDTH,
            mask_truncated_completions=False,
            beta=0.01,
            learning_rate=8e-4,
            lr_scheduler_type="constant",
            max_steps=12,
            seed=2,
        )
    )
    return GRPOTrainer(on_disk(model, tok), share_of_bits, args=args, train_dataset=data, processing_class=tok)
