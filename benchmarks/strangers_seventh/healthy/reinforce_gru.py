"""REINFORCE with a GRU instead of a transformer: one sample for each prompt and no groups; the baseline is a running mean of
the reward for each kind of task, updated only after it was used, and the rewards lie between 0 and 10. The loss is
summed over the tokens of a row (the exact gradient of the expected reward), averaged over rows."""

import random

import torch
from torch import nn

CHARS = "abcdefgh0123456789+>~"
PAD, END, OFFSET = 0, 1, 2
LIMIT = 6


def encode(text):
    return [OFFSET + CHARS.index(c) for c in text]


def decode(ids):
    return "".join(CHARS[i - OFFSET] for i in ids if i >= OFFSET)


class Gru(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.embed = nn.Embedding(OFFSET + len(CHARS), 48, padding_idx=PAD)
        self.gru = nn.GRU(48, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, OFFSET + len(CHARS))

    def forward(self, ids, state=None):
        out, state = self.gru(self.embed(ids), state)
        return self.head(out), state


def tasks():
    """Three kinds of tasks, each with prompts of one length (so no padding on the left)."""
    sums = [("sum", f"{a}+{b}>", str(a + b)) for a in range(8) for b in range(8)]
    turns = [("turn", f"{x}{y}~>", y + x) for x in "abcdefgh" for y in "abcdefgh"]
    nexts = [("next", f"{x}{d}+>", chr((ord(x) - 97 + d) % 8 + 97)) for x in "abcdefgh" for d in range(1, 5)]
    return {"sum": sums, "turn": turns, "next": nexts}


def supervised(model, data, steps=500):
    """The pretrained policy: right about half of the time."""
    rng = random.Random(0)
    rows = []
    for kind, items in data.items():
        golds = [gold for _, _, gold in items]
        for _, prompt, gold in items:
            for _ in range(12):
                said = gold if rng.random() < 0.45 else rng.choice(golds)
                rows.append((encode(prompt), encode(said) + [END]))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / steps)
        batch = rng.sample(rows, 64)
        width = max(len(h) + len(t) for h, t in batch)
        ids = torch.tensor([h + t + [PAD] * (width - len(h) - len(t)) for h, t in batch])
        target = torch.tensor([[-100] * len(h) + t + [-100] * (width - len(h) - len(t)) for h, t in batch])
        logits, _ = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def sample(model, prompts):
    """Completions, right-padded, and the mask of their tokens (with the end token)."""
    token = torch.tensor([encode(p) for p in prompts])
    alive = torch.ones(len(prompts), dtype=torch.bool)
    state, tokens, mask = None, [], []
    for _ in range(LIMIT):
        logits, state = model(token, state)
        drawn = torch.multinomial(logits[:, -1].softmax(-1), 1).squeeze(1)
        drawn = torch.where(alive, drawn, torch.full_like(drawn, PAD))
        tokens.append(drawn)
        mask.append(alive.clone())
        alive = alive & (drawn != END)
        token = drawn.unsqueeze(1)
    return torch.stack(tokens, 1), torch.stack(mask, 1)


def loop(watch, steps=12):
    torch.manual_seed(1)
    model = Gru()
    data = tasks()
    supervised(model, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    w = watch(model, optimizer)
    rng = random.Random(4)
    baseline = {kind: 3.5 for kind in data}
    for _ in range(steps):
        losses, seen, rewards_all, batches = [], {}, [], []
        for kind, items in data.items():
            chosen = rng.sample(items, 32)
            ids, mask = sample(model, [p for _, p, _ in chosen])
            rewards = [
                10.0 if decode(row[m].tolist()) == gold and bool((row[m] == END).any()) else 0.0
                for row, m, (_, _, gold) in zip(ids, mask, chosen)
            ]
            batches.append((kind, [p for _, p, _ in chosen], ids, mask, rewards))
            rewards_all += rewards
        w.rewards(rewards_all)
        for kind, prompts, ids, mask, rewards in batches:
            heads = torch.tensor([encode(p) for p in prompts])
            whole = torch.cat([heads, ids], 1)
            logits, _ = model(whole[:, :-1])
            logp = logits[:, heads.size(1) - 1 :].log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
            advantage = torch.tensor(rewards) - baseline[kind]
            losses.append(-(advantage * (logp * mask).sum(1)).mean())
            seen[kind] = sum(rewards) / len(rewards)
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        for kind, mean in seen.items():
            baseline[kind] = 0.7 * baseline[kind] + 0.3 * mean
