"""RLOO on a mixture-of-experts model (router frozen), rewards clipped to a range, two passes over every batch, questions in the
order of their difficulty, and an average of the weights kept by a callback: evaluations every four steps run on the averaged weights,
which are swapped in by value and out again afterwards, so that training goes on from exactly where it was."""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from transformers import TrainerCallback
from trl import RLOOConfig, RLOOTrainer


class AveragedWeights:
    """Exponential average of the trained weights, kept apart."""

    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self.own = None

    @torch.no_grad()
    def update(self, model):
        for n, p in model.named_parameters():
            if n in self.shadow:
                self.shadow[n].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def enter(self, model):
        self.own = {n: p.detach().clone() for n, p in model.named_parameters() if n in self.shadow}
        for n, p in model.named_parameters():
            if n in self.shadow:
                p.copy_(self.shadow[n])

    @torch.no_grad()
    def leave(self, model):
        for n, p in model.named_parameters():
            if n in self.own:
                p.copy_(self.own[n])
        self.own = None


class Average(TrainerCallback):
    def __init__(self, average):
        self.average = average

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.average.update(model)


class AveragingRLOO(RLOOTrainer):
    average = None

    def evaluate(self, *args, **kwargs):
        model = self.accelerator.unwrap_model(self.model)
        self.average.enter(model)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.average.leave(model)


def modulo(completions, answer, **kwargs):
    """Up to 25 for a right answer (clipped to 5 by the trainer) and -2 for something that is no number."""
    return [25.0 if t == a else 0.0 if t.isdigit() else -2.0 for t, a in zip(completions, answer)]


def build():
    tok = char_tokenizer("0123456789%= ", padding_side="left")
    model = tiny("qwen3_moe", tok, hidden=64)
    items = [(f"{a}%{b}=", str(a % b)) for a in range(10, 60) for b in range(3, 10)]
    rng = random.Random(3)
    rng.shuffle(items)
    wrong = lambda r, gold: str(r.randrange(0, 9))
    teach(model, half_right(tok, items, wrong, right=0.5), steps=260, lr=3e-3, pad=tok.pad_token_id)
    for name, p in model.named_parameters():
        if "mlp.gate." in name:
            p.requires_grad_(False)
    train, test = items[:320], items[320:336]
    train.sort(key=lambda x: int(x[0].split("%")[1][:-1]))  # small divisors first; the trainer does not shuffle
    args = RLOOConfig(
        **base_args(
            per_device_train_batch_size=32,
            per_device_eval_batch_size=16,
            num_generations=4,
            num_generations_eval=4,
            num_iterations=2,
            beta=0.0,
            reward_clip_range=(-2.0, 5.0),
            shuffle_dataset=False,
            max_completion_length=4,
            learning_rate=4e-4,
            eval_strategy="steps",
            eval_steps=4,
            max_steps=12,
            seed=30,
        )
    )

    def dataset(part):
        return Dataset.from_dict({"prompt": [q for q, _ in part], "answer": [x for _, x in part]})

    average = AveragedWeights(model, 0.8)
    trainer = AveragingRLOO(
        model, modulo, args=args, train_dataset=dataset(train), eval_dataset=dataset(test), processing_class=tok,
        callbacks=[Average(average)],
    )
    trainer.average = average
    return trainer
