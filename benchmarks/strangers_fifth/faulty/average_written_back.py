"""A callback keeps an exponential moving average of the weights for evaluation, but at the end of every step it also copies the average into the model that is being trained.
With a decay of 0.999 each step keeps a thousandth of its update and the policy stays where it began.
say: a callback overwrites the model's weights with their moving average (EMA, 0.999) after each optimizer step, which undoes nearly the whole update.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class MovingAverage(TrainerCallback):
    def __init__(self, decay=0.999):
        self.decay = decay
        self.shadow = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p, alpha=1 - self.decay)
            p.copy_(self.shadow[name])


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(**common(per_device_train_batch_size=32)),
        train_dataset=data,
        processing_class=tok,
        callbacks=[MovingAverage()],
    )
