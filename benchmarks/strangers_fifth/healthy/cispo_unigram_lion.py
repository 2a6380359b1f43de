"""CISPO with a SentencePiece-like unigram tokenizer and a home-made Lion with layer-wise rates.

Particular: the optimizer is passed in by hand (Lion: sign updates, so the step size does not depend on the gradient),
with a lower rate for lower layers and weight decay on matrices only, and a hand-made schedule with warm-up; the
tokenizer splits words differently with and without a leading space; CISPO's one-sided clipping of the weights;
generation_batch_size twice the batch.
"""

import random

import torch
from datasets import Dataset
from material import base_args, encode, teach, tiny, unigram_tokenizer
from trl import GRPOConfig, GRPOTrainer

FRENCH = {
    "red": "rouge", "blue": "bleu", "green": "vert", "black": "noir", "white": "blanc", "yellow": "jaune",
    "dog": "chien", "cat": "chat", "horse": "cheval", "bird": "oiseau", "fish": "poisson", "cow": "vache",
    "house": "maison", "street": "rue", "town": "ville", "bread": "pain", "milk": "lait", "water": "eau",
}  # fmt: skip


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)
        return loss


def layerwise_groups(model, lr, decay=0.7):
    depth = model.config.num_hidden_layers
    groups = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if "embed_tokens" in name:
            power = depth + 1
        elif ".layers." in name:
            power = depth - int(name.split(".layers.")[1].split(".")[0])
        else:
            power = 0
        groups.setdefault((lr * decay**power, 0.01 if p.ndim > 1 else 0.0), []).append(p)
    return [{"params": ps, "lr": rate, "weight_decay": wd} for (rate, wd), ps in groups.items()]


def similarity(completions, answer, **kwargs):
    """1 for the right word; else a share for its common prefix."""
    scores = []
    for text, gold in zip(completions, answer):
        said = text.strip()
        k = 0
        while k < min(len(said), len(gold)) and said[k] == gold[k]:
            k += 1
        scores.append(1.0 if said == gold else 0.5 * k / len(gold))
    return scores


def build():
    rng = random.Random(8)
    templates = ["the french word for {} is", "translate {} into french", "in french {} means"]
    corpus = [t.format(w) + " " + f for t in templates for w, f in FRENCH.items()]
    tok = unigram_tokenizer(corpus, vocab_size=110)
    model = tiny("llama", tok, hidden=64, tie_word_embeddings=False)
    lessons = []
    words = list(FRENCH)
    for _ in range(3000):
        w = rng.choice(words)
        said = FRENCH[w] if rng.random() < 0.4 else FRENCH[rng.choice(words)]
        lessons.append(encode(tok, rng.choice(templates).format(w), said))
    teach(model, lessons, steps=350, lr=4e-3, pad=tok.pad_token_id)

    rows = [(t.format(w), f) for t in templates for w, f in FRENCH.items()]
    data = Dataset.from_dict({"prompt": [p for p, _ in rows], "answer": [f for _, f in rows]})
    optimizer = Lion(layerwise_groups(model, lr=1.5e-3))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 3))
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        generation_batch_size=128,
        num_generations=8,
        max_completion_length=12,
        max_steps=12,
        loss_type="cispo",
        epsilon_high=5.0,
        seed=1,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=similarity,
        args=args,
        train_dataset=data,
        optimizers=(optimizer, schedule),
    )


if __name__ == "__main__":
    build().train()
