"""The sampling copy gets the learner's weights after every step by load_state_dict(..., strict=False). The learner is the policy inside a
module with a value head, so all its names begin with `policy.`, the copy's do not: no key matches, strict=False keeps silent about
it, and the copy samples with the weights of the very beginning for the whole run, while its samples are trained as if the current
policy had written them.
say: The weight sync copies nothing: key names differ by the prefix `policy.` and strict=False hides it, so the sampler keeps its initial weights.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

BASE, LENGTH, PROMPTS, GROUP = 8, 3, 12, 8
EQUALS = BASE
VOCAB = BASE + 1


class Policy(nn.Module):
    """A small decoder with learned places."""

    def __init__(self, width=64):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.places = nn.Parameter(torch.randn(2 * LENGTH + 2, width) * 0.02)
        self.mix = nn.ModuleList([nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2)])
        self.feed = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(2)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.head = nn.Linear(width, VOCAB)

    def features(self, ids):
        n = ids.size(1)
        x = self.tokens(ids) + self.places[:n]
        ban = torch.ones(n, n, dtype=torch.bool).triu(1)
        for mix, feed, norm in zip(self.mix, self.feed, self.norms):
            y = norm(x)
            x = x + mix(y, y, y, attn_mask=ban, need_weights=False)[0]
            x = x + feed(x)
        return self.norms[2](x)

    def forward(self, ids):
        return self.head(self.features(ids))


class WithValue(nn.Module):
    def __init__(self, policy):
        super().__init__()
        self.policy = policy
        self.value = nn.Linear(policy.head.in_features, 1)

    def forward(self, ids):
        x = self.policy.features(ids)
        return self.policy.head(x), self.value(x.detach()).squeeze(-1)


class Engine:
    def __init__(self, policy):
        self.policy = copy.deepcopy(policy).eval()

    def sync(self, learner):
        self.policy.load_state_dict(learner.state_dict(), strict=False)

    @torch.no_grad()
    def generate(self, ids):
        for _ in range(LENGTH):
            probs = self.policy(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
        return ids


def tasks(count):
    """Add three to every digit, with a carry to the right, modulo the base."""
    digits = torch.randint(0, BASE, (count, LENGTH))
    carry, out = torch.zeros(count, dtype=torch.long), []
    for i in range(LENGTH):
        total = digits[:, i] + 3 + carry
        out.append(total % BASE)
        carry = total // BASE
    return torch.cat([digits, torch.full((count, 1), EQUALS)], 1), torch.stack(out, 1)


def pretrain(policy, steps=350):
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / steps)
        head, target = tasks(64)
        shown = torch.where(torch.rand(target.shape) < 0.35, torch.randint(0, BASE, target.shape), target)
        logits = policy(torch.cat([head, shown[:, :-1]], 1))[:, -LENGTH:]
        loss = F.cross_entropy(logits.flatten(0, 1), shown.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop(watch, steps=12):
    torch.manual_seed(6)
    policy = Policy()
    pretrain(policy)
    learner = WithValue(policy)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3, weight_decay=0.0)
    w = watch(learner, optimizer)
    engine = Engine(policy)
    for _ in range(steps):
        head, target = tasks(PROMPTS)
        head, target = head.repeat_interleave(GROUP, 0), target.repeat_interleave(GROUP, 0)
        ids = engine.generate(head)
        written = ids[:, -LENGTH:]
        rewards = (written == target).float().mean(1) + (written == target).all(1).float()
        w.rewards(rewards.tolist())
        logits, values = learner(ids[:, :-1])
        logp = logits[:, -LENGTH:].log_softmax(-1).gather(2, written[:, :, None]).squeeze(2)
        values = values[:, -LENGTH:]
        advantages = (rewards[:, None] - values).detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        loss = -(logp * advantages).mean() + 0.5 * (values - rewards[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        engine.sync(learner)
