"""A callback keeps a moving average of the weights (decay 0.98), loads it into the model every second step to probe it greedily, and
forgets to put the trained weights back. Almost all of what the optimizer did in the two steps is thrown away each time, so the
policy hardly moves although gradients and rates look fine.
say: the EMA callback copies the averaged weights into the training model every two steps and never restores the trained ones, so the optimizer's progress is overwritten and the policy stays near its start.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, half_right, one_letter_wrong, teach_rows, tiny_llama, words
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class EmaProbe(TrainerCallback):
    """Accuracy of the averaged weights on a few held-out words."""

    def __init__(self, tok, probes, decay=0.98, every=2):
        self.tok, self.probes, self.decay, self.every = tok, probes, decay, every
        self.shadow, self.backup, self.history = {}, {}, []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            self.shadow[n].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)
        if state.global_step % self.every == 0:
            self.apply(model)
            self.history.append((state.global_step, self.accuracy(model)))

    def apply(self, model):
        for n, p in model.named_parameters():
            self.backup[n] = p.detach().clone()
            p.data.copy_(self.shadow[n])

    def restore(self, model):
        for n, p in model.named_parameters():
            p.data.copy_(self.backup[n])

    @torch.no_grad()
    def accuracy(self, model):
        model.eval()
        right = 0
        for prompt, gold in self.probes:
            ids = torch.tensor([self.tok(prompt)["input_ids"]])
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6,
                pad_token_id=self.tok.pad_token_id,
            )
            right += self.tok.decode(out[0, ids.size(1):], skip_special_tokens=True) == gold
        model.train()
        return right / len(self.probes)


def exact(completions, answer, **kwargs):
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    pairs = [(f"shift {w}: ", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in words(100)]
    teach_rows(model, half_right(tok, pairs, one_letter_wrong, right=0.45), tok.pad_token_id, steps=350)
    train, probes = pairs[:92], pairs[92:]
    dataset = Dataset.from_dict({"prompt": [p for p, _ in train], "answer": [a for _, a in train]})
    args = GRPOConfig(**common(per_device_train_batch_size=64, learning_rate=5e-4, max_steps=12))
    return GRPOTrainer(
        model, exact, args=args, train_dataset=dataset, processing_class=tok, callbacks=[EmaProbe(tok, probes)]
    )
