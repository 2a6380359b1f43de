"""Sampling at temperature 0.7 instead of 1, and the log-probabilities - old, new and those of the sampler - are all taken from logits divided by the same 0.7: the policy that is trained is the
cooled one, which is the one that will be used. The loss is divided by a constant (rows times the longest answer) rather than by the number of tokens, the advantages are not divided by the spread, the groups
have only four members, and there is no KL; each batch is gone through three times in pieces with clipping. The embedding is frozen on
purpose. Prompts have different lengths and are padded on the left, with the positions counted from the first real token.
"""

import random

import torch
from material import char_tokenizer, encode, teach, tiny

HEAT, GROUP, ASKED, LONGEST, CLIP, ROUNDS = 0.7, 4, 48, 6, 0.2, 3


def total(question):
    return str(sum(int(x) for x in question[:-1].split("+")))


def off(rng, n):
    return str(max(0, n + rng.choice((-3, -2, -1, 1, 2, 3))))


def left_padded(rows, pad):
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids, mask


def places(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def draw(model, ids, mask, eos, pad):
    """LONGEST tokens a row; after the end token come pads. The mask of the completion covers the end token and nothing after it."""
    width, going = ids.shape[1], torch.ones(len(ids), dtype=torch.bool)
    for _ in range(LONGEST):
        logits = model(input_ids=ids, attention_mask=mask, position_ids=places(mask)).logits[:, -1] / HEAT
        token = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
        token = torch.where(going, token, torch.tensor(pad))
        ids = torch.cat([ids, token[:, None]], 1)
        mask = torch.cat([mask, going.long()[:, None]], 1)
        going = going & (token != eos)
        if not going.any():
            break
    return ids, mask, width


def token_logps(model, ids, mask, width):
    logits = model(input_ids=ids, attention_mask=mask, position_ids=places(mask)).logits[:, width - 1 : -1] / HEAT
    return logits.log_softmax(-1).gather(-1, ids[:, width:, None]).squeeze(-1)


def loop(watch, steps=10):
    rng = random.Random(6)
    tok = char_tokenizer("0123456789+=")
    eos, pad = tok.eos_token_id, tok.pad_token_id
    model = tiny("qwen2", tok, hidden=64, seed=6, tie_word_embeddings=False)
    questions = [f"{a}+{b}=" for a in range(1, 13) for b in range(1, 13)]
    questions += [f"{a}+{b}+{c}=" for a in range(1, 5) for b in range(1, 5) for c in range(1, 5)]
    rows = []
    for q in questions:
        for _ in range(8):
            right = total(q)
            rows.append(encode(tok, q, right if rng.random() < 0.45 else off(rng, int(right))))
    teach(model, rows, steps=700, lr=4e-3, pad=pad)

    model.get_input_embeddings().requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=7e-4, weight_decay=0.0)
    torch.manual_seed(6)
    w = watch(model, optimizer)
    for _ in range(steps):
        asked = [q for q in rng.sample(questions, ASKED) for _ in range(GROUP)]
        ids, mask = left_padded([encode(tok, q, "", end=False)[0] for q in asked], pad)
        ids, mask, width = draw(model, ids, mask, eos, pad)
        texts = [tok.decode(row[width:][m[width:].bool()], skip_special_tokens=True) for row, m in zip(ids, mask)]
        rewards = torch.tensor([float(t == total(q)) for t, q in zip(texts, asked)])
        w.rewards(rewards.tolist())
        grouped = rewards.view(-1, GROUP)
        advantages = (grouped - grouped.mean(1, keepdim=True)).flatten()
        with torch.no_grad():
            old = token_logps(model, ids, mask, width)
        real = mask[:, width:].float()
        for _ in range(ROUNDS):
            for part in torch.randperm(len(ids)).split(64):
                ratio = (token_logps(model, ids[part], mask[part], width) - old[part]).exp()
                gain = advantages[part, None]
                gain = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
                loss = -(gain * real[part]).sum() / (len(part) * LONGEST)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(params, 1.0)
                optimizer.step()
