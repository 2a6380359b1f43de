"""A run that goes on from its own checkpoint: the first five steps were made in an earlier session (in `build`), with optimizer,
schedule and random state saved; the trainer handed back resumes at step 5 of 11. Geometric-mean policy optimisation, groups
of 5, an odd number of prompts in a batch, Cohere model with tied embeddings."""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from transformers import TrainerCallback
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer


class StopAt(TrainerCallback):
    """The earlier session ended here (its time on the cluster was over)."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


class Resuming(GMPOTrainer):
    checkpoint = None

    def train(self, resume_from_checkpoint=None, **kwargs):
        return super().train(resume_from_checkpoint=resume_from_checkpoint or self.checkpoint, **kwargs)


def swapped(completions, answer, **kwargs):
    """10 for the word with its halves exchanged, less 3 for every wrong place, at least -5."""
    return [max(-5.0, 10.0 - 3.0 * (sum(x != y for x, y in zip(t, a)) + abs(len(t) - len(a)))) for t, a in zip(completions, answer)]


def wrong(rng, answer):
    letters = list(answer)
    i, j = rng.sample(range(len(letters)), 2)
    letters[i], letters[j] = letters[j], rng.choice("klmnop")
    return "".join(letters)


def build():
    tok = char_tokenizer("klmnop|>", padding_side="left")
    model = tiny("cohere", tok, hidden=64)
    rng = random.Random(2)
    words = ["".join(rng.choice("klmnop") for _ in range(4)) for _ in range(160)]
    pairs = [(f"{w[:2]}|{w[2:]}>", w[2:] + w[:2]) for w in words]
    teach(model, half_right(tok, pairs, wrong, right=0.4), steps=300, lr=3e-3, pad=tok.pad_token_id)
    path = on_disk(model, tok)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    settings = base_args(
        per_device_train_batch_size=35,
        num_generations=5,
        epsilon=0.4,
        max_completion_length=6,
        learning_rate=4e-4,
        max_steps=11,
        seed=13,
    )
    settings.update(save_strategy="steps", save_steps=5, save_total_limit=1)

    def trainer():
        return Resuming(
            path, swapped, args=GMPOConfig(**settings), train_dataset=dataset, processing_class=tok
        )

    first = trainer()
    first.add_callback(StopAt(5))
    first.train()
    second = trainer()
    second.checkpoint = settings["output_dir"] + "/checkpoint-5"
    return second
