"""The raw records contain doubles. They are removed separately for the two columns - the words through sorted(set(...)), which puts them in alphabetical order, the codes through
dict.fromkeys, which keeps the order of the file. Both columns come out with the same length, so nothing complains, but the gold
answer in a row belongs to another word. A right answer is marked wrong, and the policy is drawn away from what it knew.
say: The answer column does not belong to the prompts: the two columns are deduplicated separately and end up in different order, so each row carries the gold code of another word.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from trl import GRPOConfig, GRPOTrainer

MORSE = {"a": ".-", "d": "-..", "e": ".", "i": "..", "k": "-.-", "m": "--", "n": "-.", "r": ".-.", "s": "...", "t": "-"}


def code(word):
    return " ".join(MORSE[c] for c in word)


def keyed_right(completions, code, **kwargs):
    """1 for the very code, else up to 0.4 for the signs that agree."""
    out = []
    for text, gold in zip(completions, code):
        same = sum(x == y for x, y in zip(text, gold)) / max(len(text), len(gold))
        out.append(1.0 if text == gold else 0.4 * same)
    return out


def fumbled(rng, answer):
    i = rng.randrange(len(answer))
    return answer[:i] + rng.choice(".- ") + answer[i + (rng.random() < 0.5) :]


def records():
    """Lesson log of the club: three-letter words in the order they were sent, many of them more than once."""
    rng = random.Random(31)
    words = ["".join(rng.choices(list(MORSE), k=3)) for _ in range(260)]
    return [(w, code(w)) for w in words + rng.sample(words, 120)]


def build():
    tok = char_tokenizer("adeikmnrst.- =", padding_side="left")
    model = tiny("llama", tok, hidden=64, seed=31)
    log = records()
    teach(model, half_right(tok, [(w + "=", c) for w, c in log], fumbled, right=0.5, copies=4), steps=420, lr=4e-3, pad=tok.pad_token_id)

    words = sorted(set(w for w, _ in log))
    codes = list(dict.fromkeys(c for _, c in log))
    data = Dataset.from_dict({"prompt": [w + "=" for w in words], "code": codes})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=14,
            learning_rate=6e-4,
            lr_scheduler_type="constant",
            beta=0.01,
            max_steps=10,
            seed=31,
        )
    )
    return GRPOTrainer(on_disk(model, tok), keyed_right, args=args, train_dataset=data, processing_class=tok)
