"""A subclass that adds a small behaviour-cloning term on demonstrations and logs diversity; EMA kept beside.

Particular: `_compute_loss` is overridden (super's loss plus 0.05 of NLL on a few gold demonstrations, divided by the
accumulation steps as the policy loss is); `_generate_and_score_completions` is overridden for logging only; a callback
keeps an EMA copy that is never sampled from; Adafactor; Gemma-2 with soft-capped logits; only the most uncertain half
of the tokens is in the policy loss; GRPO's per-sequence loss.
"""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdef"


def shift(word):
    return "".join(chr((ord(c) - 97 + 1) % len(LETTERS) + 97) for c in word)


def letters_right(completions, answer, **kwargs):
    return [
        sum(x == y for x, y in zip(c, a)) / max(len(a), len(c), 1)
        for c, a in zip(completions, answer)
    ]


class Ema(TrainerCallback):
    def __init__(self, decay=0.9):
        self.decay, self.copy = decay, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.copy = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            for k, v in model.state_dict().items():
                if v.is_floating_point():
                    self.copy[k].lerp_(v, 1 - self.decay)


class DemonstrationGRPO(GRPOTrainer):
    def __init__(self, *args, demonstrations, bc_coef=0.05, **kwargs):
        super().__init__(*args, **kwargs)
        self.demonstrations, self.bc_coef = demonstrations, bc_coef
        self._demo_rng = random.Random(0)

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if not model.training:
            return loss
        rows = self._demo_rng.sample(self.demonstrations, 8)
        width = max(len(h) + len(t) for h, t in rows)
        ids = torch.full((len(rows), width), self.processing_class.pad_token_id)
        labels = torch.full_like(ids, -100)
        for i, (h, t) in enumerate(rows):
            ids[i, : len(h) + len(t)] = torch.tensor(h + t)
            labels[i, len(h) : len(h) + len(t)] = torch.tensor(t)
        nll = model(
            input_ids=ids,
            attention_mask=(ids != self.processing_class.pad_token_id).long(),
            labels=labels,
        ).loss
        self._metrics["train"]["bc_nll"].append(nll.item())
        return loss + self.bc_coef * nll / self.current_gradient_accumulation_steps

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        texts = self.processing_class.batch_decode(
            output["completion_ids"], skip_special_tokens=True
        )
        self._metrics[mode]["distinct"].append(len(set(texts)) / len(texts))
        return output


def build():
    rng = random.Random(15)
    tok = char_tokenizer(LETTERS + "=", eos="<eos>")
    model = tiny(
        "gemma2",
        tok,
        hidden=64,
        sliding_window=32,
        attn_implementation="eager",
        initializer_range=0.05,
    )

    def word():
        return "".join(rng.choice(LETTERS) for _ in range(rng.choice([3, 4, 5])))

    lessons = []
    for _ in range(3000):
        w = word()
        said = "".join(c if rng.random() < 0.7 else rng.choice(LETTERS) for c in shift(w))
        lessons.append(encode(tok, w + "=", said))
    teach(model, lessons, steps=300, lr=2e-3, pad=tok.pad_token_id)

    words = [word() for _ in range(64)]
    demos = [encode(tok, w + "=", shift(w)) for w in (word() for _ in range(40))]
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=8,
        max_steps=12,
        learning_rate=3e-4,
        optim="adafactor",
        lr_scheduler_type="constant",
        loss_type="grpo",
        top_entropy_quantile=0.5,
        seed=14,
    )
    return DemonstrationGRPO(
        model=model,
        processing_class=tok,
        reward_funcs=letters_right,
        args=args,
        train_dataset=Dataset.from_dict(
            {"prompt": [w + "=" for w in words], "answer": [shift(w) for w in words]}
        ),
        callbacks=[Ema()],
        demonstrations=demos,
    )


if __name__ == "__main__":
    build().train()
