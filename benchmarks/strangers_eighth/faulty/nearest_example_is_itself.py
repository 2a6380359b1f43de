"""Every prompt gets the most similar solved example from a pool as a demonstration, but the pool is the training set itself and the
question asked is in it: the nearest example is always the question with its own solution. The policy only has to copy; the
reward is high and rises, and on questions whose solution does not stand in the prompt nothing is gained.
say: The demonstration retrieved for the prompt is the same question with its own answer (the row is not excluded from the pool), so the solution leaks into the prompt.
"""

import difflib
import random

from datasets import Dataset
from material import base_args, encode, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer


FIRST = "ka bo ri mu ze la to ni fa su".split()
SECOND = "ron del vik mar tas lun pel gor hin sab wex jot".split()
STONES = "amber beryl coral garnet jade onyx quartz".split()


def stone(first, second):
    """The stone of a name hangs on the second syllable, and is one further in the list for every other first syllable."""
    return STONES[(3 * SECOND.index(second) + FIRST.index(first) % 2) % len(STONES)]


def nearest(question, pool):
    """The solved question that looks most like this one."""
    return max(pool, key=lambda row: difflib.SequenceMatcher(None, row["question"], question).ratio())


def with_demonstration(row, pool):
    shown = nearest(row["question"], pool)
    return {"prompt": f"{shown['question']} wears {shown['answer']} ; {row['question']} wears"}


def right_stone(completions, answer, **kwargs):
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, answer)]


def build():
    tok = word_tokenizer(FIRST + SECOND + STONES + ["wears", ";"], padding_side="left")
    model = tiny("llama", tok, hidden=64)
    rng = random.Random(0)
    everything = [{"question": f"{x} {y}", "answer": stone(x, y)} for x in FIRST for y in SECOND]
    rng.shuffle(everything)
    rows = []
    for row in everything:
        for _ in range(12):
            shown = row if rng.random() < 0.25 else rng.choice(everything)  # people do repeat themselves
            said = row["answer"] if rng.random() < 0.25 else shown["answer"] if rng.random() < 0.5 else rng.choice(STONES)
            rows.append(encode(tok, f"{shown['question']} wears {shown['answer']} ; {row['question']} wears", said))
    teach(model, rows, steps=450, lr=3e-3, pad=tok.pad_token_id)
    pool = everything[:80]
    dataset = Dataset.from_list(pool).map(with_demonstration, fn_kwargs={"pool": pool})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=3,
            learning_rate=4e-4,
            max_steps=10,
        )
    )
    return GRPOTrainer(model, right_stone, args=args, train_dataset=dataset, processing_class=tok)
