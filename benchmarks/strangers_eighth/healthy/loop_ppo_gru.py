"""PPO on a recurrent policy with a value head: a GRU reads a bit string and writes it reversed, one bit after the other, with a
reward for every right bit as it is written. Generalised advantage estimation with a zero value after the last step, advantages
normalised over the batch, three epochs over minibatches with clipped ratios and a clipped value loss, an entropy bonus, and
a stop of the epochs when the policy has moved too far. Adam at eps 1e-5, as is the custom in PPO."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

BITS, START, SEP = 2, 2, 3
LENGTH, BATCH = 5, 64
GAMMA, LAMBDA, CLIP = 0.97, 0.9, 0.2


class Recurrent(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(4, 16)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.actor = nn.Linear(width, BITS)
        self.critic = nn.Linear(width, 1)

    def forward(self, tokens, state=None):
        out, state = self.gru(self.embed(tokens), state)
        return self.actor(out), self.critic(out).squeeze(-1), state


def source(batch):
    bits = torch.randint(0, 2, (batch, LENGTH))
    head = torch.cat([torch.full((batch, 1), START), bits, torch.full((batch, 1), SEP)], 1)
    return head, bits.flip(1)


def pretrain(model, steps=220):
    """Imitation of a clumsy demonstrator, wrong in a fifth of the bits."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        head, target = source(64)
        shown = torch.where(torch.rand(target.shape) < 0.2, 1 - target, target)
        logits, _, _ = model(torch.cat([head, shown[:, :-1]], 1))
        loss = F.cross_entropy(logits[:, -LENGTH:].flatten(0, 1), shown.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def rollout(model):
    head, target = source(BATCH)
    logits, values, state = model(head)
    logits, value = logits[:, -1], values[:, -1]
    actions, logps, baseline = [], [], []
    for _ in range(LENGTH):
        dist = Categorical(logits=logits)
        action = dist.sample()
        actions.append(action)
        logps.append(dist.log_prob(action))
        baseline.append(value)
        logits, value, state = model(action[:, None], state)
        logits, value = logits[:, -1], value[:, -1]
    actions, logps, baseline = (torch.stack(x, 1) for x in (actions, logps, baseline))
    rewards = torch.where(actions == target, 1.0, -0.5)
    return head, actions, logps, baseline, rewards


def gae(rewards, values):
    advantages, running = torch.zeros_like(rewards), torch.zeros(len(rewards))
    for t in reversed(range(LENGTH)):
        after = values[:, t + 1] if t + 1 < LENGTH else torch.zeros(len(rewards))
        running = rewards[:, t] + GAMMA * after - values[:, t] + GAMMA * LAMBDA * running
        advantages[:, t] = running
    return advantages, advantages + values


def loop(watch, steps=10):
    torch.manual_seed(11)
    random.seed(11)
    model = Recurrent()
    pretrain(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3, eps=1e-5)
    w = watch(model, optimizer)
    for _ in range(steps):
        head, actions, old, values, rewards = rollout(model)
        w.rewards(rewards.sum(1).tolist())
        advantages, returns = gae(rewards, values)
        for epoch in range(3):
            moved = []
            for part in torch.randperm(BATCH).split(32):
                logits, now, _ = model(torch.cat([head[part], actions[part, :-1]], 1))
                dist = Categorical(logits=logits[:, -LENGTH:])
                now = now[:, -LENGTH:]
                logp = dist.log_prob(actions[part])
                ratio = (logp - old[part]).exp()
                adv = advantages[part]
                adv = (adv - advantages.mean()) / (advantages.std() + 1e-8)
                policy = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
                near = values[part] + (now - values[part]).clamp(-0.5, 0.5)
                value = torch.max((now - returns[part]).square(), (near - returns[part]).square()).mean()
                loss = policy + 0.25 * value - 0.003 * dist.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                moved.append(((ratio - 1) - (logp - old[part])).mean().item())
            if sum(moved) / len(moved) > 0.03:
                break
