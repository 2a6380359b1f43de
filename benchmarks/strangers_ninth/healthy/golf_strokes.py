"""Rewards that are never positive: the score is minus the number of strokes (edits) needed to turn the answer into the right one, so the
mean reward is about -1 to -3 and a perfect answer gets 0. That is sound: only differences inside a group count. The differences are left in strokes
(scale_rewards="none", loss dr_grpo) on purpose, so that an easy word with one miss does not weigh as much as a hard one; no KL, because
the checkpoint is only a starting point here.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdefgh"


def strokes(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def golf(completions, backwards, **kwargs):
    return [-float(strokes(text, gold)) for text, gold in zip(completions, backwards)]


def slip(rng, answer):
    letters = list(answer)
    for _ in range(rng.choice((1, 1, 2))):
        letters[rng.randrange(len(letters))] = rng.choice(LETTERS)
    return "".join(letters)


def build():
    tok = char_tokenizer(LETTERS + "<", padding_side="left")
    model = tiny("llama", tok, hidden=64, seed=3)
    rng = random.Random(3)
    words = list({"".join(rng.choices(LETTERS, k=rng.choice((3, 4, 5)))) for _ in range(300)})
    words.sort()
    rng.shuffle(words)
    pairs = [(w + "<", w[::-1]) for w in words]
    teach(model, half_right(tok, pairs, slip, right=0.45, copies=6), steps=380, lr=4e-3, pad=tok.pad_token_id)
    data = Dataset.from_list([{"prompt": p, "backwards": b} for p, b in pairs])
    args = GRPOConfig(
        **base_args(
            beta=0.0,
            loss_type="dr_grpo",
            scale_rewards="none",
            per_device_train_batch_size=128,
            num_generations=8,
            max_completion_length=8,
            learning_rate=8e-4,
            lr_scheduler_type="constant",
            max_steps=12,
            seed=11,
        )
    )
    return GRPOTrainer(model, golf, args=args, train_dataset=data, processing_class=tok)
