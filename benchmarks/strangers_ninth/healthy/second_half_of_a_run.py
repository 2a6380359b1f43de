"""The second half of an interrupted run. A first job trained six steps and left a checkpoint (weights, optimizer, scheduler, random state); this job has the very same settings
with twice the number of steps, and its train() picks the checkpoint up. So this job's first step is number 7 (the lines of the first six come back with the state), the learning rate starts in full without a warm-up, the
rewards begin higher than those of the untrained model and the Adam moments are there before the first step. The KL is not 0 at
the start either, since the reference is the model from before the first job. The model handed to the trainer is the old one; its weights are
overwritten by those of the checkpoint when training starts.
"""

import os
import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from trl import GRPOConfig, GRPOTrainer

VOWELS = "aeiou"


def no_vowels(word):
    return "".join(c for c in word if c not in VOWELS)


def consonants_kept(completions, skeleton, **kwargs):
    scores = []
    for text, gold in zip(completions, skeleton):
        if text == gold:
            scores.append(1.0)
        else:
            scores.append(-0.25 * any(c in VOWELS for c in text))
    return scores


def careless(rng, answer):
    if rng.random() < 0.5:
        i = rng.randrange(len(answer) + 1)
        return answer[:i] + rng.choice(VOWELS) + answer[i:]
    return answer[:-1] or "b"


class Resumed(GRPOTrainer):
    """Goes on from the newest checkpoint in the output folder."""

    def train(self, *args, **kwargs):
        kwargs.setdefault("resume_from_checkpoint", True)
        return super().train(*args, **kwargs)


def build():
    tok = char_tokenizer("bcdfgaeiou|", padding_side="left")
    model = tiny("olmo2", tok, hidden=64, seed=4)
    rng = random.Random(17)
    words = sorted({"".join(rng.choices("bcdfgaeiou", k=rng.choice((3, 4, 5)))) for _ in range(320)})
    words = [w for w in words if no_vowels(w)]
    rng.shuffle(words)
    pairs = [(w + "|", no_vowels(w)) for w in words]
    teach(model, half_right(tok, pairs, careless, right=0.5, copies=6), steps=350, lr=4e-3, pad=tok.pad_token_id)
    start = on_disk(model, tok)
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "skeleton": [g for _, g in pairs]})
    settings = base_args(
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=7,
        learning_rate=6e-4,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        beta=0.02,
        seed=23,
    )
    settings.update(save_strategy="steps", save_steps=6)

    def job(kind, steps):
        return kind(
            start,
            consonants_kept,
            args=GRPOConfig(**{**settings, "max_steps": steps}),
            train_dataset=data,
            processing_class=tok,
        )

    job(GRPOTrainer, 6).train()
    assert os.path.isdir(os.path.join(settings["output_dir"], "checkpoint-6"))
    return job(Resumed, 12)
