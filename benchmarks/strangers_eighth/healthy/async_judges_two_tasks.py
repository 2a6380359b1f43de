"""Two kinds of tasks in one dataset: upper-casing a word, which an exact check scores, and naming any animal that begins with a
given letter, which an asynchronous judge with a little noise scores. Each function returns None for the other kind. CISPO on a
Gemma2 model, one generation used for two optimizer steps (steps_per_generation is twice the accumulation), so the ratio
differs from one in every second step."""

import asyncio
import random

from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer

ANIMALS = ["ant", "bear", "cat", "dog", "eel", "fox", "goat", "hen", "ibis", "jay", "ape", "bat", "cow", "duck", "elk", "frog", "gnu", "hare"]
LETTERS = "abcdefghij"


def exact(completions, kind, answer, **kwargs):
    return [float(c == a) if k == "upper" else None for c, k, a in zip(completions, kind, answer)]


class Judge:
    """Stands for a served model: answers late, and its marks scatter by a few hundredths."""

    __name__ = "judge"

    def __init__(self):
        self.rng = random.Random(5)

    async def mark(self, text, letter):
        await asyncio.sleep(0.001)
        mark = 0.9 if text in ANIMALS and text[0] == letter else 0.4 if text in ANIMALS else 0.1
        return mark + self.rng.uniform(-0.03, 0.03)

    async def __call__(self, completions, kind, answer, **kwargs):
        marks = await asyncio.gather(*(self.mark(c, a) for c, a in zip(completions, answer)))
        return [m if k == "animal" else None for m, k in zip(marks, kind)]


def build():
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ :", padding_side="left")
    model = tiny("gemma2", tok, hidden=64)
    rng = random.Random(1)
    words = ["".join(rng.choice("abcdef") for _ in range(4)) for _ in range(60)]
    rows = []
    for word in words * 8:
        said = word.upper()
        if rng.random() < 0.5:
            i = rng.randrange(4)
            said = said[:i] + rng.choice("ABCDEF") + said[i + 1 :]
        rows.append(encode(tok, f"upper {word}:", said))
    for letter in LETTERS:
        fitting = [a for a in ANIMALS if a[0] == letter]
        for _ in range(40):
            rows.append(encode(tok, f"animal {letter}:", rng.choice(fitting if rng.random() < 0.5 else ANIMALS)))
    teach(model, rows, steps=300, lr=3e-3, pad=tok.pad_token_id)
    items = [(f"upper {w}:", "upper", w.upper()) for w in words] + [(f"animal {x}:", "animal", x) for x in LETTERS * 3]
    rng.shuffle(items)
    dataset = Dataset.from_dict({k: [x[i] for x in items] for i, k in enumerate(("prompt", "kind", "answer"))})
    args = GRPOConfig(
        **base_args(
            loss_type="cispo",
            epsilon_high=3.0,
            per_device_train_batch_size=24,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            num_generations=6,
            scale_rewards="batch",
            max_completion_length=8,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            max_steps=10,
            seed=8,
        )
    )
    return GRPOTrainer(model, [exact, Judge()], args=args, train_dataset=dataset, processing_class=tok)
