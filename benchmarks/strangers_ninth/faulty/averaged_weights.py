"""A callback keeps a running average of the weights, meant for the evaluation. It writes the average into the model after every step and never puts the
trained weights back, so each step starts from the average again: with a decay of 0.98 the model keeps a fiftieth of every
update. The learning rate looks ample in the log, but the weights hardly leave the checkpoint.
say: The EMA callback overwrites the live weights with the average after each step and does not restore them, so nearly all of every optimizer update (98%) is undone.
"""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class WeightAverage(TrainerCallback):
    """Smoother weights for evaluation and for the checkpoint."""

    def __init__(self, decay=0.98):
        self.decay, self.average = decay, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            self.average[name].lerp_(p, 1 - self.decay)
            p.copy_(self.average[name])


def exact_interval(completions, step, **kwargs):
    return [1.0 if c == s else 0.0 for c, s in zip(completions, step)]


def off_by_some(rng, answer):
    sign, size = answer[0], int(answer[1:])
    if rng.random() < 0.3:
        sign = "+" if sign == "-" else "-"
    return f"{sign}{max(0, size + rng.choice((-2, -1, 0, 1, 2)))}"


def build():
    tok = char_tokenizer("0123456789+->=", padding_side="left")
    model = tiny("mistral", tok, hidden=64, seed=15)
    pairs = [(f"{a:02d}>{b:02d}=", f"{b - a:+d}") for a in range(10, 22) for b in range(10, 22)]
    random.Random(15).shuffle(pairs)
    teach(model, half_right(tok, pairs, off_by_some, right=0.6, copies=12), steps=600, lr=4e-3, pad=tok.pad_token_id)
    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "step": [s for _, s in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=128,
            num_generations=8,
            max_completion_length=5,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            max_steps=12,
            seed=15,
        )
    )
    return GRPOTrainer(
        model, exact_interval, args=args, train_dataset=data, processing_class=tok, callbacks=[WeightAverage()]
    )
