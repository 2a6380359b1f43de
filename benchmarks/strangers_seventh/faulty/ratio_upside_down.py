"""The importance ratio is upside down, exp(old - new) instead of exp(new - old). Its value is 1 in the first epoch, so nothing looks
wrong, but its gradient has the opposite sign: right answers become less likely, wrong ones more likely, and the reward falls.
say: the ratio is inverted (old log-probabilities minus new ones), so the policy gradient has the wrong sign.
"""

import random

import torch
from material import char_tokenizer, half_right, one_letter_wrong, teach_rows, tiny_llama, words

GROUP, PROMPTS, LIMIT, EPOCHS, EPSILON = 8, 12, 6, 3, 0.2


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


def clipped_objective(logps, old_logps, advantages):
    ratio = torch.exp(old_logps - logps)
    clipped = torch.clamp(ratio, 1 - EPSILON, 1 + EPSILON)
    return torch.min(ratio * advantages, clipped * advantages)


def loop(watch, steps=12):
    tok = char_tokenizer()
    policy = tiny_llama(tok, hidden=96)
    pairs = [(f"shift {w}: ", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in words(120, seed=11)]
    teach_rows(policy, half_right(tok, pairs, one_letter_wrong, right=0.45), tok.pad_token_id, steps=350)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=4e-4, weight_decay=0.0)
    w = watch(policy, optimizer)
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(steps // EPOCHS):
        batch = [pair for pair in rng.sample(pairs, PROMPTS) for _ in range(GROUP)]
        rows = sample(policy, tok, [p for p, _ in batch])
        texts = [tok.decode(c, skip_special_tokens=True) for _, c in rows]
        rewards = [1.0 if text == gold else 0.0 for text, (_, gold) in zip(texts, batch)]
        w.rewards(rewards)
        grouped = torch.tensor(rewards).view(PROMPTS, GROUP)
        advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        with torch.no_grad():
            old_logps, mask = token_logps(policy, rows, tok.pad_token_id)
        for _ in range(EPOCHS):
            logps, _ = token_logps(policy, rows, tok.pad_token_id)
            objective = clipped_objective(logps, old_logps, advantages.view(-1, 1))
            loss = -(objective * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
