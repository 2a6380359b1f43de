"""Differences below ten in four wordings, a small Gemma, with an evaluation every four steps.

A fifth of the rows is held out (also from the SFT before); eval_reward is to tell whether the model does differences that it was not trained on. The wordings
make the few facts into a data set of a decent size.
"""

import random

from datasets import Dataset
from kit import mixed, quiet, sft, small, words
from trl import GRPOConfig, GRPOTrainer

WORDINGS = ["{a} - {b} =", "{a} minus {b} is", "take {b} from {a} :", "what is {a} less {b} ?"]


def right_difference(completions, difference, **kwargs):
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, difference)]


def near(rng, answer):
    return str(max(0, int(answer) + rng.choice([-2, -1, 1, 2, 3])))


def facts_in_words():
    rows = []
    for a in range(10):
        for b in range(a + 1):
            for wording in WORDINGS:
                rows.append({"prompt": wording.format(a=a, b=b), "difference": str(a - b)})
    return rows


def build():
    tok = words([str(n) for n in range(14)] + " ".join(WORDINGS).replace("{a}", "").replace("{b}", "").split())
    rows = facts_in_words()
    model = small("gemma", tok, seed=45)
    split = Dataset.from_list(rows).train_test_split(test_size=0.2, seed=0)
    pairs = [(row["prompt"], row["difference"]) for row in split["train"]]
    sft(model, tok, mixed(pairs, near, share=0.5, times=8), steps=420)
    args = GRPOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=48,
            per_device_eval_batch_size=64,
            num_generations=8,
            num_generations_eval=4,
            max_completion_length=4,
            learning_rate=4e-4,
            lr_scheduler_type="cosine",
            eval_strategy="steps",
            eval_steps=4,
            seed=46,
        )
    )
    return GRPOTrainer(
        model,
        right_difference,
        args=args,
        train_dataset=split["train"],
        eval_dataset=split["test"],
        processing_class=tok,
    )


if __name__ == "__main__":
    build().train()
