"""GRPO with actors that lag behind: the sampling copy of the policy gets the learner's weights only every second step, and every
batch is trained once with the log-probabilities that the actor had (importance ratios, clipped on both sides, token by token).
The learner keeps fp32 weights, the actor computes in bf16 like a served model, which the ratios correct too. A small
transformer encoder used causally; multiples of a number are to be written; AdamW with weight decay on matrices only."""

import copy
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = list("0123456789") + ["x", ",", "$", "_"]
CODE = {c: i for i, c in enumerate(TOKENS)}
END, PAD = CODE["$"], CODE["_"]
GROUP, PROMPTS, LIMIT = 8, 8, 12


class Writer(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(len(TOKENS), width)
        self.places = nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(TOKENS), bias=False)

    def forward(self, ids):
        n = ids.size(1)
        mask = torch.full((n, n), -math.inf, device=ids.device).triu(1)
        x = self.tokens(ids) + self.places.weight[:n]
        return self.head(self.norm(self.body(x, mask=mask.to(x.dtype))))


def answer(n):
    return ",".join(str(n * k) for k in (1, 2, 3))


def codes(text):
    return [CODE[c] for c in text]


def show(model, steps=280):
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        for g in optimizer.param_groups:
            g["lr"] = 3e-3 * (1 - step / steps)
        rows = []
        for _ in range(48):
            n = rng.randrange(2, 34)
            parts = answer(n).split(",")
            if rng.random() < 0.6:
                i = rng.randrange(1, 3)
                parts[i] = str(int(parts[i]) + rng.choice([-10, -1, 1, 10])).lstrip("-")
            rows.append(codes(f"{n:02d}x") + codes(",".join(parts)) + [END])
        width = max(map(len, rows))
        ids = torch.tensor([r + [PAD] * (width - len(r)) for r in rows])
        target = ids[:, 1:].clone()
        target[target == PAD] = -100
        target[:, :2] = -100
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), target.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def act(actor, heads):
    """Samples after equally long heads; the log-probabilities are those of the actor."""
    ids = torch.tensor(heads)
    alive = torch.ones(len(ids), dtype=torch.bool)
    mask, logps = [], []
    for _ in range(LIMIT):
        logp = actor(ids)[:, -1].float().log_softmax(-1)
        token = torch.multinomial(logp.exp(), 1).squeeze(1)
        token = torch.where(alive, token, PAD)
        mask.append(alive.clone())
        logps.append(logp.gather(1, token[:, None]).squeeze(1))
        ids = torch.cat([ids, token[:, None]], 1)
        alive = alive & (token != END)
        if not alive.any():
            break
    return ids, torch.stack(mask, 1), torch.stack(logps, 1)


def score(text, n):
    """A third for each right number at its place, and a quarter off if it does not end."""
    body = text.split("$")[0].split(",")
    right = sum(x == y for x, y in zip(body, answer(n).split(","))) / 3
    return right - (0.25 if "$" not in text else 0.0) - 0.1 * max(0, len(body) - 3)


def publish(actor, learner):
    with torch.no_grad():
        for a, b in zip(actor.parameters(), learner.parameters()):
            a.copy_(b)  # rounds to bf16


def loop(watch, steps=10):
    torch.manual_seed(3)
    rng = random.Random(8)
    learner = Writer()
    show(learner)
    learner.train()
    actor = copy.deepcopy(learner).to(torch.bfloat16).eval()
    decayed = [p for p in learner.parameters() if p.dim() > 1]
    other = [p for p in learner.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": other, "weight_decay": 0.0}], lr=4e-4)
    w = watch(learner, optimizer)
    for step in range(steps):
        if step % 2 == 0:
            publish(actor, learner)
        asked = rng.sample(range(2, 34), PROMPTS)
        heads = [codes(f"{n:02d}x") for n in asked for _ in range(GROUP)]
        ids, mask, old = act(actor, heads)
        texts = ["".join(TOKENS[i] for i in row[3:]).rstrip("_") for row in ids.tolist()]
        rewards = torch.tensor([score(t, n) for t, n in zip(texts, [n for n in asked for _ in range(GROUP)])])
        w.rewards(rewards.tolist())
        grouped = rewards.view(PROMPTS, GROUP)
        advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        logp = learner(ids[:, :-1])[:, 2:].log_softmax(-1).gather(2, ids[:, 3:, None]).squeeze(2)
        ratio = (logp - old).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.25) * advantages).clamp(min=-4.0)
        loss = -(gain * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
