"""The data is a single prompt, repeated: "write a palindrome". There is no gold answer and no other question, because the reward is a property of the
text alone. All groups of a batch are hence draws for the same prompt, and the rewards are scaled by the spread of the whole batch. An entropy bonus keeps the
policy from settling on one word, and short texts earn nothing, so "aa" is no way out; a repeated word within a group is marked down.
"""

from collections import Counter

import random

from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer

LETTERS, PROMPT, GROUP = "abcde", "palindrome>", 16


def mirrored(completions, **kwargs):
    """Share of the letters that agree with their mirror image; a bonus for all of them; only for 5 to 9 letters."""
    scores = []
    for text in completions:
        if not 5 <= len(text) <= 9:
            scores.append(0.0)
            continue
        same = sum(x == y for x, y in zip(text, reversed(text))) / len(text)
        scores.append(same + (1.0 if same == 1 else 0.0))
    return scores


def fresh(completions, **kwargs):
    """Minus a tenth for each twin in the group (the completions of a group follow one another)."""
    scores = []
    for start in range(0, len(completions), GROUP):
        group = completions[start : start + GROUP]
        count = Counter(group)
        scores += [-0.1 * (count[text] - 1) for text in group]
    return scores


def build():
    tok = char_tokenizer(LETTERS + "palindrome>", padding_side="left")
    model = tiny("qwen2", tok, hidden=64, seed=12)
    rng, rows = random.Random(4), []
    for _ in range(4000):
        half = "".join(rng.choices(LETTERS, k=3))
        word = half + half[1::-1]
        if rng.random() < 0.6:
            i = rng.randrange(len(word))
            word = word[:i] + rng.choice(LETTERS) + word[i + 1 :]
        rows.append(encode(tok, PROMPT, word))
    teach(model, rows, steps=600, lr=4e-3, pad=tok.pad_token_id)
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=128,
            num_generations=GROUP,
            scale_rewards="batch",
            entropy_coef=0.002,
            max_completion_length=12,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            max_steps=12,
            seed=1,
        )
    )
    return GRPOTrainer(
        model,
        [mirrored, fresh],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * 96}),
        processing_class=tok,
    )
