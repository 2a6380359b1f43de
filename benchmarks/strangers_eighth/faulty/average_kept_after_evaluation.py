"""Evaluations run on an exponential average of the weights. Before, `evaluate` sets the trained weights aside with
`backup = model.state_dict()` and loads the average; afterwards it loads the backup. But state_dict() holds references to the very
tensors into which the average is then copied: the backup is the average too, and every second step training is thrown back to an
average that lies close to the start.
say: The backup of the weights is not a copy (state_dict without clone), so after each evaluation the averaged weights stay in the model and the training progress is lost.
"""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class KeepAverage(TrainerCallback):
    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.average = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for k, v in model.state_dict().items():
            if v.dtype.is_floating_point:
                self.average[k].mul_(self.decay).add_(v, alpha=1 - self.decay)


class SmoothEvalTrainer(GRPOTrainer):
    """Evaluates the averaged weights."""

    keeper = None

    def evaluate(self, *args, **kwargs):
        model = self.accelerator.unwrap_model(self.model)
        backup = model.state_dict()
        model.load_state_dict(self.keeper.average)
        metrics = super().evaluate(*args, **kwargs)
        model.load_state_dict(backup)
        return metrics


def next_letters(completions, answer, **kwargs):
    """A third of a point for each right letter, with half a point off for a wrong length."""
    return [sum(x == y for x, y in zip(t, a)) / 3 - 0.5 * (len(t) != len(a)) for t, a in zip(completions, answer)]


def wrong(rng, answer):
    return "".join(rng.choice("abcdefghijkl") if rng.random() < 0.45 else c for c in answer)


def build():
    tok = char_tokenizer("abcdefghijkl>:", padding_side="left")
    model = tiny("llama", tok, hidden=64)
    letters = "abcdefghijkl"
    pairs = []
    for i in range(12):
        for j in (1, 2, 3, 10, 11):
            seq = [letters[(i + k * j) % 12] for k in range(5)]
            pairs += [("".join(seq[:2]) + sign, "".join(seq[2:])) for sign in ">:"]
    random.Random(1).shuffle(pairs)
    teach(model, half_right(tok, pairs, wrong, right=0.1), steps=420, lr=3e-3, pad=tok.pad_token_id)

    def dataset(part):
        return Dataset.from_dict({"prompt": [p for p, _ in part], "answer": [a for _, a in part]})

    keeper = KeepAverage(model)
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=96,
            per_device_eval_batch_size=32,
            num_generations=8,
            num_generations_eval=2,
            max_completion_length=5,
            learning_rate=6e-4,
            lr_scheduler_type="constant",
            eval_strategy="steps",
            eval_steps=2,
            max_steps=12,
            seed=14,
        )
    )
    trainer = SmoothEvalTrainer(
        model, next_letters, args=args, train_dataset=dataset(pairs[:104]), eval_dataset=dataset(pairs[104:]),
        processing_class=tok, callbacks=[keeper],
    )
    trainer.keeper = keeper
    return trainer
