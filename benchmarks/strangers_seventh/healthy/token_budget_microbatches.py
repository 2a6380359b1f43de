"""Two epochs over each batch with one optimizer step an epoch; a step adds up gradients of micro-batches of unequal size,
because rows are sorted by length and packed up to a budget of tokens (their advantages and old log-probabilities travel
with them), and each micro-batch's sum is divided by the tokens of the whole batch. Prompts are left-padded for sampling and
the rows right-padded for training, which is why the same tokens sit at other places in the two passes."""

import random

import torch
from material import byte_bpe_tokenizer, half_right, teach, tiny

GROUP, BUDGET, LIMIT = 6, 320, 10
LOW, HIGH = 0.2, 0.28
NAMES = ["ada", "bo", "cleo", "dev", "eve", "finn"]


def tasks():
    """Who is last in the queue? (queues of three to six)"""
    rng = random.Random(6)
    out = set()
    while len(out) < 150:
        queue = rng.sample(NAMES, rng.randrange(3, 7))
        out.add(("queue: " + ", ".join(queue) + ". last:", " " + queue[-1]))
    return sorted(out)


def log_probs(model, rows, pad):
    """Right-padded rows of (prompt ids, completion ids): log-probabilities and the mask of the completions' tokens."""
    width = max(len(p) + len(c) for p, c in rows)
    ids = torch.tensor([p + c + [pad] * (width - len(p) - len(c)) for p, c in rows])
    seen = torch.tensor([[1] * (len(p) + len(c)) + [0] * (width - len(p) - len(c)) for p, c in rows])
    mine = torch.tensor([[0] * len(p) + [1] * len(c) + [0] * (width - len(p) - len(c)) for p, c in rows])
    logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1].float()
    logp = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return logp, mine[:, 1:].float()


def pack(rows):
    """Indices of the rows, short ones first, in micro-batches of at most BUDGET padded tokens."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
    parts = [[]]
    for i in order:
        size = len(rows[i][0]) + len(rows[i][1])
        if parts[-1] and size * (len(parts[-1]) + 1) > BUDGET:
            parts.append([])
        parts[-1].append(i)
    return parts


def sample(model, tok, prompts):
    heads = [tok(p)["input_ids"] for p in prompts]
    width = max(map(len, heads))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(h)) + h for h in heads])
    mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in heads])
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=LIMIT, pad_token_id=tok.pad_token_id
        )
    model.train()
    rows = []
    for head, new in zip(heads, out[:, width:].tolist()):
        n = new.index(tok.eos_token_id) + 1 if tok.eos_token_id in new else len(new)
        rows.append((head, new[:n]))
    return rows


def loop(watch, steps=12):
    data = tasks()
    tok = byte_bpe_tokenizer([p + a for p, a in data], vocab_size=300, padding_side="left")
    model = tiny("phi3", tok, hidden=96)
    lesson = half_right(tok, data, lambda rng, gold: " " + rng.choice([n for n in NAMES if n != gold.strip()]), right=0.5, copies=20)
    teach(model, lesson, steps=500, lr=2e-3, pad=tok.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    w = watch(model, optimizer)
    rng = random.Random(1)
    torch.manual_seed(2)
    for _ in range(steps // 2):
        chosen = [item for item in rng.sample(data, 12) for _ in range(GROUP)]
        rows = sample(model, tok, [p for p, _ in chosen])
        texts = [tok.decode(c, skip_special_tokens=True) for _, c in rows]
        rewards = [float(text == gold) for text, (_, gold) in zip(texts, chosen)]
        w.rewards(rewards)
        grouped = torch.tensor(rewards).view(-1, GROUP)
        advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()
        parts = pack(rows)
        tokens = sum(len(c) for _, c in rows)
        with torch.no_grad():
            old = [log_probs(model, [rows[i] for i in part], tok.pad_token_id)[0] for part in parts]
        for _ in range(2):
            optimizer.zero_grad()
            for part, before in zip(parts, old):
                logp, mask = log_probs(model, [rows[i] for i in part], tok.pad_token_id)
                ratio = (logp - before).exp()
                a = advantages[part].unsqueeze(1)
                loss = -torch.min(ratio * a, ratio.clamp(1 - LOW, 1 + HIGH) * a)
                ((loss * mask).sum() / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
