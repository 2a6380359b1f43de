"""A callback drops the gradients of a step whose norm is above three times the running average, and the average starts at zero and is only fed by steps that were let through.
The first norm is above zero, so it is dropped and the average stays zero, and so it goes for every step of the run.
say: a callback zeroes the gradients before every optimizer step (its running average of the norm starts at 0 and is never updated, so each step counts as a spike), so the weights never change.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class SpikeGuard(TrainerCallback):
    """Skips updates whose gradient is far larger than usual."""

    def __init__(self, factor=3.0, momentum=0.9):
        self.factor, self.momentum = factor, momentum
        self.average = 0.0
        self.skipped = 0

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm().item()
        if norm > self.factor * self.average:
            for g in grads:
                g.zero_()
            self.skipped += 1
        else:
            self.average = self.momentum * self.average + (1 - self.momentum) * norm


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok, callbacks=[SpikeGuard()],
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=4)),
    )
