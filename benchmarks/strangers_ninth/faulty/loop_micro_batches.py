"""A step is to be taken over eight micro-batches whose gradients add up. But the gradients are set to zero at the head of the micro-batch loop instead of once before it, so that only the last of the eight
is left when the optimizer steps - with a weight of one eighth. Seven eighths of the generated answers are thrown away.
say: zero_grad() is called inside the accumulation loop, so the gradients of all micro-batches but the last are wiped out and only one eighth of the batch counts.
"""

import copy
import random

import torch
from material import char_tokenizer, encode, teach, tiny

GROUP, QUESTIONS, MICRO, BETA, NEW = 8, 16, 16, 0.02, 5


def plus_time(question):
    """"0930+45" is 10:15, written 1015."""
    clock, extra = question.split("+")
    minutes = (int(clock[:2]) * 60 + int(clock[2:]) + int(extra)) % 1440
    return f"{minutes // 60:02d}{minutes % 60:02d}"


def judge(text, gold):
    return 1.0 if text == gold else 0.25 if text[:2] == gold[:2] else 0.0


def logp(model, ids, first):
    logits = model(input_ids=ids).logits[:, first - 1 : -1]
    return logits.log_softmax(-1).gather(-1, ids[:, first:, None]).squeeze(-1)


@torch.no_grad()
def answer(model, ids, tok):
    open_rows, real = torch.ones(len(ids), dtype=torch.bool), []
    for _ in range(NEW):
        token = torch.distributions.Categorical(logits=model(input_ids=ids).logits[:, -1]).sample()
        token = torch.where(open_rows, token, torch.full_like(token, tok.pad_token_id))
        real.append(open_rows.float())
        open_rows = open_rows & (token != tok.eos_token_id)
        ids = torch.cat([ids, token.unsqueeze(1)], 1)
    return ids, torch.stack(real, 1)


def loop(watch, steps=12):
    rng = random.Random(105)
    tok = char_tokenizer("0123456789+=")
    model = tiny("qwen3", tok, hidden=64, seed=105)
    questions = [f"{h:02d}{m:02d}+{e}" for h in range(24) for m in (0, 15, 30, 45) for e in (15, 30, 45)]
    rows = []
    for q in questions:
        for _ in range(5):
            gold = plus_time(q)
            wrong = f"{rng.randrange(24):02d}{gold[2:]}" if rng.random() < 0.5 else gold[:2] + rng.choice(("00", "15", "30", "45"))
            rows.append(encode(tok, q + "=", gold if rng.random() < 0.4 else wrong))
    teach(model, rows, steps=450, lr=4e-3, pad=tok.pad_token_id)
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.0)
    torch.manual_seed(105)
    w = watch(model, optimizer)
    for _ in range(steps):
        asked = [q for q in rng.sample(questions, QUESTIONS) for _ in range(GROUP)]
        ids = torch.tensor([encode(tok, q + "=", "", end=False)[0] for q in asked])
        first = ids.shape[1]
        ids, real = answer(model, ids, tok)
        texts = [tok.decode(i[first:][r.bool()], skip_special_tokens=True) for i, r in zip(ids, real)]
        rewards = torch.tensor([judge(t, plus_time(q)) for t, q in zip(texts, asked)])
        w.rewards(rewards.tolist())
        by_question = rewards.view(-1, GROUP)
        advantages = (by_question - by_question.mean(1, keepdim=True)) / (by_question.std(1, keepdim=True) + 1e-4)
        advantages = advantages.flatten()[:, None]
        with torch.no_grad():
            old, ref = logp(model, ids, first), logp(reference, ids, first)
        pieces = torch.arange(len(ids)).split(MICRO)
        for piece in pieces:
            optimizer.zero_grad()
            now = logp(model, ids[piece], first)
            ratio = (now - old[piece]).exp()
            gain = torch.min(ratio * advantages[piece], ratio.clamp(0.8, 1.2) * advantages[piece])
            gap = ref[piece] - now
            kl = gap.exp() - gap - 1
            loss = -((gain - BETA * kl) * real[piece]).sum() / real[piece].sum()
            (loss / len(pieces)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
