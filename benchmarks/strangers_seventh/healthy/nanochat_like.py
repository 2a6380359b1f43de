"""In the style of nanochat: an own GPT with rotary positions and an engine with a key-value cache that runs a calculator
when the model writes one (the tokens it forces into the text are not trained), advantages r - mean without a division by
the deviation, one prompt after the other with gradients added up, no ratio and no clipping because every sample is used
once, and two groups of parameters whose rates fall linearly."""

import random

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = ["<pad>", "<end>", "<calc>", "<run>", "<out>", "</out>"] + list("0123456789+*?a ")
ID = {t: i for i, t in enumerate(VOCAB)}
PAD, END, CALC, RUN, OUT, OUT_END = range(6)
GROUP, LIMIT = 8, 14


def encode(text):
    """Tokens are separated by nothing; the special ones stand between angle brackets."""
    ids, i = [], 0
    while i < len(text):
        j = text.index(">", i) + 1 if text[i] == "<" else i + 1
        ids.append(ID[text[i:j]])
        i = j
    return ids


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def rotate(self, x, start):
        half = x.size(-1) // 2
        freq = 10000.0 ** (-torch.arange(half) / half)
        angle = (torch.arange(x.size(2)) + start)[:, None] * freq
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        start = 0 if not cache else cache["k"].size(2)
        q, k = self.rotate(q, start), self.rotate(k, start)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1 and start == 0)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cache=None):
        x = x + self.attention(F.rms_norm(x, (x.size(-1),)), cache)
        return x + self.down(F.relu(self.up(F.rms_norm(x, (x.size(-1),)))).square())


class GPT(nn.Module):
    def __init__(self, width=80, layers=2, heads=4):
        super().__init__()
        self.wte = nn.Embedding(len(VOCAB), width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.lm_head = nn.Linear(width, len(VOCAB), bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def forward(self, ids, targets=None, reduction="mean", caches=None):
        x = self.wte(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i])
        logits = self.lm_head(F.rms_norm(x, (x.size(-1),)))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction=reduction)


class Engine:
    """Batched sampling of one prompt with a cache; a row that wrote `<calc>7*8<run>` gets `<out>56</out>` forced."""

    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def generate(self, prompt, rows):
        caches = [{} for _ in self.model.blocks]
        logits = self.model(torch.tensor([prompt] * rows), caches=caches)[:, -1]
        tokens = [list(prompt) for _ in range(rows)]
        masks = [[0] * len(prompt) for _ in range(rows)]
        forced = [[] for _ in range(rows)]
        ended = [False] * rows
        for _ in range(LIMIT):
            drawn = torch.multinomial(logits.softmax(-1), 1).squeeze(1).tolist()
            step = []
            for i in range(rows):
                if ended[i]:
                    step.append(PAD)
                    continue
                mine = not forced[i]
                token = drawn[i] if mine else forced[i].pop(0)
                tokens[i].append(token)
                masks[i].append(int(mine))
                step.append(token)
                ended[i] = token == END
                if mine and token == RUN:
                    forced[i] = self.calculate(tokens[i])
            if all(ended):
                break
            logits = self.model(torch.tensor(step).unsqueeze(1), caches=caches)[:, -1]
        return tokens, masks

    def calculate(self, row):
        start = len(row) - 1 - row[::-1].index(CALC) if CALC in row else len(row) - 1
        text = "".join(VOCAB[t] for t in row[start + 1 : -1])
        left, star, right = text.partition("*")
        answer = str(int(left) * int(right)) if star and left.isdigit() and right.isdigit() else "?"
        return [OUT, *encode(answer), OUT_END]


def tasks():
    """How much are a times b? The wrong way is to guess, the right one to call the calculator with both numbers."""
    return [(encode(f"{a}*{b}?"), str(a * b), a, b) for a in range(2, 10) for b in range(2, 10)]


def reward(row, prompt, gold):
    text = [VOCAB[t] for t in row[len(prompt) :]]
    if text[-1] != "<end>" or "a" not in text:
        return 0.0
    said = "".join(text[text.index("a") + 1 : -1])
    return 1.0 if said == gold else 0.0


def supervised(model, steps=500):
    """Half of the time the dialogue guesses, and half of the calls have a wrong factor."""
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    items = tasks()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / steps)
        rows = []
        for _ in range(48):
            prompt, gold, a, b = rng.choice(items)
            if rng.random() < 0.3:
                rows.append((prompt, encode(f"a{int(gold) + rng.choice([-2, -1, 0, 1, 2])}<end>"), []))
                continue
            x, y = (a, b) if rng.random() < 0.7 else (a, rng.randrange(2, 10))
            call, out = encode(f"<calc>{x}*{y}<run>"), encode(f"<out>{x * y}</out>")
            rows.append((prompt, call, out + encode(f"a{x * y}<end>")))
        width = max(len(p) + len(c) + len(o) for p, c, o in rows)
        ids = torch.tensor([p + c + o + [PAD] * (width - len(p + c + o)) for p, c, o in rows])
        target = torch.tensor([[-1] * (len(p) - 1) + c + o + [-1] * (width - len(p + c + o)) for p, c, o in rows])
        loss = model(ids[:, :-1], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop(watch, steps=10):
    torch.manual_seed(5)
    model = GPT()
    supervised(model)
    matrices = [p for p in model.blocks.parameters()]
    tables = list(model.wte.parameters()) + list(model.lm_head.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "lr": 6e-4}, {"params": tables, "lr": 2e-4}], betas=(0.9, 0.95), weight_decay=0.0
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    w = watch(model, optimizer)
    engine = Engine(model)
    rng = random.Random(3)
    items = tasks()
    prompts_per_step = 8
    for step in range(steps):
        batch, all_rewards = [], []
        model.eval()
        for prompt, gold, _, _ in rng.sample(items, prompts_per_step):
            rows, masks = engine.generate(prompt, GROUP)
            rewards = torch.tensor([reward(row, prompt, gold) for row in rows])
            all_rewards += rewards.tolist()
            width = max(map(len, rows))
            ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
            mask = torch.tensor([m + [0] * (width - len(m)) for m in masks])
            targets = ids[:, 1:].clone()
            targets[mask[:, 1:] == 0] = -1  # the prompt, what the engine forced, and the padding
            batch.append((ids[:, :-1], targets, rewards - rewards.mean()))
        w.rewards(all_rewards)
        model.train()
        for inputs, targets, advantages in batch:
            logp = -model(inputs, targets, reduction="none").view_as(inputs)
            objective = (logp * advantages.unsqueeze(1)).sum() / (targets >= 0).sum().clamp(min=1)
            (-objective / prompts_per_step).backward()
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * (1 - step / steps)
        optimizer.step()
        model.zero_grad(set_to_none=True)
