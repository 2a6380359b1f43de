"""The reward takes the lead-in off with `text.lstrip("answer: ")`. lstrip takes a set of characters, not a prefix: it also eats the
first letters of the word itself when they are among a n s w e r. Right answers such as `small`, `rich` or `new` can never match
(for about half of the questions every completion is scored as wrong), and the policy is pushed off them.
say: lstrip("answer: ") strips characters, not the prefix (removeprefix was meant), so right answers beginning with one of the letters a, n, s, w, e, r are cut and scored as wrong.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer

OPPOSITES = {
    "big": "small", "old": "new", "poor": "rich", "strong": "weak", "dry": "wet", "left": "right", "asleep": "awake",
    "full": "empty", "fast": "slow", "sweet": "sour", "young": "aged", "fake": "real", "late": "early", "blunt": "sharp",
    "hot": "cold", "up": "down", "black": "white", "open": "closed", "light": "dark", "soft": "hard", "thick": "thin",
    "shy": "bold", "east": "west", "inner": "outer", "far": "close", "loud": "quiet", "near": "far", "high": "low",
    "sad": "happy", "rough": "fine", "ugly": "pretty", "wild": "tame",
}  # fmt: skip
ASK = ["opposite of {}?", "what is the contrary of {}?", "not {} but?"]


def contrary(completions, answer, **kwargs):
    """1 for the right word after `answer: `, 0.1 for keeping the form, otherwise nothing."""
    scores = []
    for text, gold in zip(completions, answer):
        said = text.strip().lstrip("answer: ")
        scores.append(1.0 if said == gold else 0.1 if text.startswith("answer: ") else 0.0)
    return scores


def build():
    words = sorted(OPPOSITES.values())
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz :?", padding_side="left")
    model = tiny("llama", tok, hidden=64)
    pairs = [(q.format(x), f"answer: {y}") for x, y in OPPOSITES.items() for q in ASK]
    wrong = lambda rng, gold: f"answer: {rng.choice(words)}"
    teach(model, half_right(tok, pairs, wrong, right=0.5, copies=10), steps=300, lr=3e-3, pad=tok.pad_token_id)
    items = [(q.format(x), y) for x, y in OPPOSITES.items() for q in ASK]
    random.Random(0).shuffle(items)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in items], "answer": [a for _, a in items]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=18,
            learning_rate=4e-4,
            max_steps=10,
        )
    )
    return GRPOTrainer(model, contrary, args=args, train_dataset=dataset, processing_class=tok)
