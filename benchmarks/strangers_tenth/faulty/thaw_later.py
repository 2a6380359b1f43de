"""Head first, body later: for the start of the run only the output layer learns, then a callback thaws the rest.

A small untied Llama on "which animal is the bigger one". The idea is from transfer learning: let the new head settle before the
body moves.
"""

import random

from datasets import Dataset
from kit import mixed, quiet, sft, small, words
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

ANIMALS = "flea ant bee mouse rat cat fox dog sheep pig wolf lion bear horse bull rhino elephant whale".split()


def bigger(completions, animal, **kwargs):
    return [1.0 if text.split() == [gold] else 0.0 for text, gold in zip(completions, animal)]


class ThawLater(TrainerCallback):
    """Freezes all but the head when training begins and thaws everything after `after` of the training."""

    def __init__(self, after):
        self.after = after
        self.thawed = False

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        for name, weight in model.named_parameters():
            weight.requires_grad_(name.startswith("lm_head") or name.startswith("model.norm"))

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if not self.thawed and state.epoch >= self.after:
            for weight in model.parameters():
                weight.requires_grad_(True)
            self.thawed = True


def build():
    tok = words(ANIMALS + ["or", "?"])
    rng = random.Random(18)
    duels = [(a, b) for a in ANIMALS for b in ANIMALS if a != b]
    rng.shuffle(duels)
    pairs = [(f"{a} or {b} ?", max(a, b, key=ANIMALS.index)) for a, b in duels]
    rows = []
    for prompt, gold in pairs:
        a, _, b, _ = prompt.split()
        rows += [(prompt, gold if rng.random() < 0.55 else rng.choice([a, b, rng.choice(ANIMALS)])) for _ in range(5)]
    model = small("llama", tok, seed=19, tie_word_embeddings=False)
    sft(model, tok, rows, steps=260)
    args = GRPOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=4,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            seed=17,
        )
    )
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "animal": [a for _, a in pairs]})
    return GRPOTrainer(
        model, bigger, args=args, train_dataset=data, processing_class=tok, callbacks=[ThawLater(after=0.5)]
    )


if __name__ == "__main__":
    build().train()
