"""RLOO with a KL that fades: a callback takes beta down from 0.1 to 0.01 over the run.

The idea is to stay near the SFT model while the first rewards come in and to let go afterwards. The task is to
count the vowels of a made-up word: one point for the exact count, half a point for being off by one.
"""

import random

from datasets import Dataset
from kit import letters, mixed, quiet, saved, sft, small
from transformers import TrainerCallback
from trl import RLOOConfig, RLOOTrainer


def count_reward(completions, vowels, **kwargs):
    scores = []
    for text, gold in zip(completions, vowels):
        text = text.strip()
        if not text.isdigit():
            scores.append(0.0)
        else:
            gap = abs(int(text) - gold)
            scores.append(1.0 if gap == 0 else 0.5 if gap == 1 else 0.0)
    return scores


class FadingBeta(TrainerCallback):
    def __init__(self, first, last):
        self.first, self.last = first, last
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        part = state.global_step / max(1, state.max_steps - 1)
        self.trainer.beta = self.first + (self.last - self.first) * part


def guess(rng, answer):
    return rng.choice(["0", "1", "2", "3", "4", "5", "x"])


def build():
    tok = letters("abcdefghijklmnopqrstuvwxyz0123456789:")
    rng = random.Random(15)
    made = ["".join(rng.choices("aeioubcdfgklmnprst", k=rng.randint(3, 7))) for _ in range(260)]
    pairs = [(f"{w}:", str(sum(ch in "aeiou" for ch in w))) for w in made]
    model = small("qwen3", tok, seed=9)
    sft(model, tok, mixed(pairs, guess, share=0.5, times=6), steps=320)
    args = RLOOConfig(
        **quiet(
            max_steps=10,
            per_device_train_batch_size=48,
            num_generations=6,
            max_completion_length=4,
            learning_rate=5e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=2,
            beta=0.1,
            seed=2,
        )
    )
    fading = FadingBeta(0.1, 0.01)
    trainer = RLOOTrainer(
        saved(model, tok),
        count_reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [p for p, _ in pairs], "vowels": [int(v) for _, v in pairs]}),
        processing_class=tok,
        callbacks=[fading],
    )
    fading.trainer = trainer
    return trainer


if __name__ == "__main__":
    build().train()
