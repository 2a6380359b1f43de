"""bf16 weights with fp32 master copies in the optimizer, embeddings and the first block frozen, negative rewards.

Particular: the model itself is bf16 (no autocast) while an own AdamW steps fp32 masters and copies them back; the LM
head is cast to fp32; the frozen parts have no gradient; every reward is <= 0 (minus the edit distance, minus a cost for
a wrong length); the rewards are normalised one by one and then summed (GDPO); an entropy bonus; top_k.
"""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer


class MasterAdamW(torch.optim.Optimizer):
    """AdamW on fp32 masters of low-precision parameters."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["step"] = 0
                    s["master"] = p.detach().float().clone()
                    s["m"], s["v"] = torch.zeros_like(s["master"]), torch.zeros_like(s["master"])
                s["step"] += 1
                g = p.grad.float()
                s["m"].lerp_(g, 1 - b1)
                s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                m, v = s["m"] / (1 - b1 ** s["step"]), s["v"] / (1 - b2 ** s["step"])
                s["master"].mul_(1 - group["lr"] * group["weight_decay"])
                s["master"].addcdiv_(m, v.sqrt() + group["eps"], value=-group["lr"])
                p.copy_(s["master"])
        return loss


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def edit_cost(completions, answer, **kwargs):
    return [-float(distance(c, a)) for c, a in zip(completions, answer)]


def length_cost(completions, answer, **kwargs):
    return [-abs(len(c) - len(a)) / 4 for c, a in zip(completions, answer)]


def build():
    rng = random.Random(27)
    tok = char_tokenizer("abcdefgh:")
    model = tiny(
        "llama", tok, hidden=64, layers=3, tie_word_embeddings=False, initializer_range=0.05
    )

    def word():
        return "".join(rng.choice("abcdefgh") for _ in range(rng.choice([3, 4, 5])))

    lessons = []
    for _ in range(4000):
        w = word()
        said = "".join(c if rng.random() < 0.75 else rng.choice("abcdefgh") for c in w)
        if rng.random() < 0.25:
            said += rng.choice("abcdefgh")
        lessons.append(encode(tok, w + ":", said))
    teach(model, lessons, steps=300, lr=2e-3, pad=tok.pad_token_id)

    model = model.to(torch.bfloat16)
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    optimizer = MasterAdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0)

    words = [word() for _ in range(80)]
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=10,
        max_steps=12,
        cast_lm_head_to_fp32=True,
        multi_objective_aggregation="normalize_then_sum",
        entropy_coef=0.003,
        top_k=9,
        loss_type="dapo",
        seed=16,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[edit_cost, length_cost],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [w + ":" for w in words], "answer": words}),
        optimizers=(optimizer, schedule),
    )


if __name__ == "__main__":
    build().train()
