"""Qwen3 chat model on weekdays: "three days after monday?".

The data come as question and answer; a map turns the question into the text of a conversation with the tokenizer's own
template, so that the trainer gets finished strings. Reward: the weekday, and nothing but the weekday, in the answer.
"""

import random

from datasets import Dataset
from kit import CHAT, mixed, quiet, sft, small, words
from trl import GRPOConfig, GRPOTrainer

DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
COUNTS = "one two three four five six".split()


def right_day(completions, day, **kwargs):
    return [1.0 if text.split() == [gold] else 0.0 for text, gold in zip(completions, day)]


def build():
    tok = words(DAYS + COUNTS + "days after before ? be brief .".split(), extra=["<|system|>", "<|user|>", "<|assistant|>"])
    tok.chat_template = CHAT.replace("|>{{ message['content'] }}", "|> {{ message['content'] }} ")

    def conversation(question):
        return [{"role": "system", "content": "be brief ."}, {"role": "user", "content": question}]

    quiz = []
    for i, day in enumerate(DAYS):
        for n, count in enumerate(COUNTS, 1):
            quiz.append((f"{count} days after {day} ?", DAYS[(i + n) % 7]))
            quiz.append((f"{count} days before {day} ?", DAYS[(i - n) % 7]))
    model = small("qwen3", tok, seed=23)
    taught = [(conversation(q), a) for q, a in quiz]
    sft(model, tok, mixed(taught, lambda rng, a: rng.choice(DAYS), share=0.5, times=20), steps=320)

    random.Random(5).shuffle(quiz)
    raw = Dataset.from_dict({"question": [q for q, _ in quiz], "day": [a for _, a in quiz]})

    def render(row):
        return {"prompt": tok.apply_chat_template(conversation(row["question"]), tokenize=False)}

    args = GRPOConfig(
        **quiet(
            max_steps=10,
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=8,
            learning_rate=4e-4,
            lr_scheduler_type="cosine",
            seed=10,
        )
    )
    return GRPOTrainer(
        model, right_day, args=args, train_dataset=raw.map(render, remove_columns=["question"]), processing_class=tok
    )


if __name__ == "__main__":
    build().train()
