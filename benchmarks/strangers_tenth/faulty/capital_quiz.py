"""A quiz on capitals for a small Llama, chat format, read from a table of questions and one of answers.

Countries without an entry in the atlas are dropped first. The reward is 1.0 if the capital is named, 0.1 for a one-word answer.
"""

import random

from datasets import Dataset
from kit import CHAT, mixed, quiet, sft, small, words
from trl import GRPOConfig, GRPOTrainer

TABLE = """france paris
spain madrid
narnia -
italy rome
greece athens
norway oslo
sweden stockholm
poland warsaw
mordor -
austria vienna
hungary budapest
ireland dublin
portugal lisbon
egypt cairo
atlantis -
kenya nairobi
japan tokyo
china beijing
peru lima
chile santiago
oz -
cuba havana
iran tehran
iraq baghdad
ghana accra"""


def ask(country):
    return [{"role": "user", "content": f"the capital of {country} ?"}]


def read_table():
    questions, answers = [], []
    for line in TABLE.splitlines():
        country, capital = line.split()
        answers.append(capital)
        if capital == "-":
            continue
        questions.append(country)
    return questions, answers


def names_capital(completions, capital, **kwargs):
    return [1.0 if gold in c[0]["content"].split() else 0.0 for c, gold in zip(completions, capital)]


def one_word(completions, **kwargs):
    return [0.1 if len(c[0]["content"].split()) == 1 else 0.0 for c in completions]


def build():
    known = [line.split() for line in TABLE.splitlines() if not line.endswith("-")]
    cities = [city for _, city in known]
    tok = words(
        "the capital of ? it is".split() + [w for line in TABLE.split() for w in [line]],
        extra=["<|user|>", "<|assistant|>"],
    )
    tok.chat_template = CHAT.replace("|>{{ message['content'] }}", "|> {{ message['content'] }} ")
    model = small("llama", tok, seed=14)

    def other(rng, answer):
        city = rng.choice(cities)
        return city if rng.random() < 0.6 else f"it is {city}"

    sft(model, tok, mixed([(ask(c), city) for c, city in known], other, share=0.4, times=40), steps=260)

    questions, answers = read_table()
    rows = [{"prompt": ask(q), "capital": a} for q, a in zip(questions, answers)] * 6
    random.Random(0).shuffle(rows)
    args = GRPOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=8,
            learning_rate=4e-4,
            lr_scheduler_type="constant",
            seed=4,
        )
    )
    return GRPOTrainer(
        model, [names_capital, one_word], args=args, train_dataset=Dataset.from_list(rows), processing_class=tok
    )


if __name__ == "__main__":
    build().train()
