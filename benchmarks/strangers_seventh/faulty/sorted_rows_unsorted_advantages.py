"""To save padding, the rows are sorted by length before they are cut into micro-batches, but the advantages are cut in the order of
sampling. Each row is trained with another row's advantage, mostly from another prompt, so the gradient is noise and the reward
does not rise.
say: the rows are reordered by length but the advantages are not, so completions and advantages are misaligned in the micro-batches.
"""

import random

import torch
from material import char_tokenizer, half_right, one_letter_wrong, teach_rows, tiny_llama, words

GROUP, PROMPTS, LIMIT, MICRO = 8, 12, 8, 24


@torch.no_grad()
def sample(model, tok, prompts):
    """Rows of (prompt ids, completion ids); the completion ends with its end token."""
    heads = [tok(p)["input_ids"] for p in prompts]
    width = max(map(len, heads))
    pad, end = tok.pad_token_id, tok.eos_token_id
    ids = torch.tensor([[pad] * (width - len(h)) + h for h in heads])
    mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in heads])
    model.eval()
    out = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=LIMIT, pad_token_id=pad
    )
    model.train()
    new = out[:, width:].tolist()
    return [(h, c[: c.index(end) + 1] if end in c else c) for h, c in zip(heads, new)]


def token_logps(model, rows, pad):
    width = max(len(h) + len(c) for h, c in rows)
    ids = torch.tensor([h + c + [pad] * (width - len(h + c)) for h, c in rows])
    seen = torch.tensor([[1] * len(h + c) + [0] * (width - len(h + c)) for h, c in rows])
    mine = torch.tensor([[0] * len(h) + [1] * len(c) + [0] * (width - len(h + c)) for h, c in rows])
    logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1].float()
    logps = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return logps, mine[:, 1:].float()


def tasks():
    """Words of two to four letters to shift by one letter."""
    items = words(30, size=2, seed=1) + words(45, size=3, seed=2) + words(45, size=4, seed=3)
    return [(f"shift {w}: ", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in items]


def loop(watch, steps=12):
    tok = char_tokenizer()
    policy = tiny_llama(tok, hidden=96)
    data = tasks()
    teach_rows(policy, half_right(tok, data, one_letter_wrong, right=0.45), tok.pad_token_id, steps=400)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=4e-4, weight_decay=0.0)
    w = watch(policy, optimizer)
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(steps):
        batch = [item for item in rng.sample(data, PROMPTS) for _ in range(GROUP)]
        rows = sample(policy, tok, [p for p, _ in batch])
        texts = [tok.decode(c, skip_special_tokens=True) for _, c in rows]
        rewards = [1.0 if text == gold else 0.0 for text, (_, gold) in zip(texts, batch)]
        w.rewards(rewards)
        grouped = torch.tensor(rewards).view(PROMPTS, GROUP)
        advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)
        rows = sorted(rows, key=lambda row: len(row[0]) + len(row[1]))
        tokens = sum(len(c) for _, c in rows)
        optimizer.zero_grad()
        for start in range(0, len(rows), MICRO):
            logps, mask = token_logps(policy, rows[start : start + MICRO], tok.pad_token_id)
            weights = advantages[start : start + MICRO].unsqueeze(1)
            (-(weights * logps * mask).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
