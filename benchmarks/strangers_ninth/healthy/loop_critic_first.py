"""PPO with a value head and a reward at every token: a point for each letter that is in its place, and a small penalty for each token by which the answer is too long. In the first three
updates only the value head is trained (the policy's rate is 0 then): it starts from nothing, and advantages from a random critic
would only shake the policy. A KL penalty against the frozen start is taken off the reward token by token. Nothing is discounted
(gamma 1, short answers) and the value loss reaches the head only, since the head reads detached states.
"""

import copy
import random

import torch
from material import char_tokenizer, encode, teach, tiny
from torch import nn

LETTERS, BATCH, LONGEST, GAMMA, LAMBDA, CLIP, KL, WARM = "abcdefghij", 64, 7, 1.0, 0.9, 0.2, 0.02, 3


def shifted(word):
    return "".join(LETTERS[(LETTERS.index(c) + 1) % len(LETTERS)] for c in word)


class WithValue(nn.Module):
    def __init__(self, lm, width):
        super().__init__()
        self.lm = lm
        self.head = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, ids):
        out = self.lm(input_ids=ids, output_hidden_states=True)
        return out.logits, self.head(out.hidden_states[-1].detach()).squeeze(-1)


@torch.no_grad()
def draw(lm, ids, eos, pad):
    going, start = torch.ones(len(ids), dtype=torch.bool), ids.shape[1]
    for _ in range(LONGEST):
        token = torch.multinomial(lm(input_ids=ids).logits[:, -1].softmax(-1), 1).squeeze(-1)
        token = torch.where(going, token, torch.tensor(pad))
        ids = torch.cat([ids, token[:, None]], 1)
        going &= token != eos
    answers = ids[:, start:]
    ended = (answers == eos).long()
    return ids, start, (ended.cumsum(1) - ended == 0).float()


def logps_of(logits, ids, start):
    return logits[:, start - 1 : -1].log_softmax(-1).gather(-1, ids[:, start:, None]).squeeze(-1)


def points(answers, real, golds, tok):
    out = torch.zeros_like(real)
    for i, gold in enumerate(golds):
        want = tok(gold, add_special_tokens=False)["input_ids"] + [tok.eos_token_id]
        for t in range(int(real[i].sum())):
            out[i, t] = (1.0 if answers[i, t] == want[t] else 0.0) if t < len(want) else -0.2
    return out


def gae(rewards, values, real):
    """Right to left; what follows the last real token is worth nothing."""
    out, running = torch.zeros_like(rewards), torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        later = values[:, t + 1] * real[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros(len(rewards))
        delta = rewards[:, t] + GAMMA * later - values[:, t]
        running = (delta + GAMMA * LAMBDA * running) * real[:, t]
        out[:, t] = running
    return out


def loop(watch, steps=12):
    rng = random.Random(19)
    tok = char_tokenizer(LETTERS + ">")
    lm = tiny("stablelm", tok, hidden=64, seed=19)
    words = ["".join(rng.choices(LETTERS, k=4)) for _ in range(500)]
    rows = []
    for word in words:
        for _ in range(4):
            rows.append(encode(tok, word + ">", "".join(c if rng.random() < 0.75 else rng.choice(LETTERS) for c in shifted(word))))
    teach(lm, rows, steps=400, lr=4e-3, pad=tok.pad_token_id)
    start_lm = copy.deepcopy(lm).eval().requires_grad_(False)
    torch.manual_seed(19)
    model = WithValue(lm, 64)
    optimizer = torch.optim.Adam([{"params": lm.parameters(), "lr": 0.0}, {"params": model.head.parameters(), "lr": 3e-3}])
    w = watch(model, optimizer)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.0 if step < WARM else 3e-4
        asked = rng.sample(words, BATCH)
        ids = torch.tensor([encode(tok, a + ">", "", end=False)[0] for a in asked])
        ids, start, real = draw(lm, ids, tok.eos_token_id, tok.pad_token_id)
        with torch.no_grad():
            logits, values = model(ids)
            old, values = logps_of(logits, ids, start), values[:, start - 1 : -1]
            ref = logps_of(start_lm(input_ids=ids).logits, ids, start)
        earned = points(ids[:, start:], real, [shifted(a) for a in asked], tok)
        w.rewards(earned.sum(1).tolist())
        advantages = gae((earned - KL * (old - ref)) * real, values, real)
        targets = advantages + values
        mean = (advantages * real).sum() / real.sum()
        spread = (((advantages - mean).square() * real).sum() / real.sum()).sqrt()
        advantages = (advantages - mean) / (spread + 1e-8)
        for _ in range(3):
            for part in torch.randperm(BATCH).split(32):
                logits, value = model(ids[part])
                ratio = (logps_of(logits, ids[part], start) - old[part]).exp()
                gain = torch.min(ratio * advantages[part], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[part])
                miss = (value[:, start - 1 : -1] - targets[part]).square()
                loss = ((0.5 * miss - gain) * real[part]).sum() / real[part].sum()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
                nn.utils.clip_grad_norm_(model.head.parameters(), 1.0)
                optimizer.step()
