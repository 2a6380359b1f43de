"""Episodes of different length are put end to end in one buffer, and generalised advantage estimation runs backwards over the whole of
it without looking at the ends of the episodes: the last step of an episode is credited with the value of the next episode's start
and with its advantages. Running ashore costs nothing, for the points of the next episode follow, so there is little to learn from.
say: GAE (bootstrap value and running sum) is not cut at episode ends: the done flag is not used, so advantages leak from the next episode in the buffer into the one before.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

BANK, GAMMA, LAMBDA, CLIP, HORIZON = 4, 0.97, 0.95, 0.2, 600


class Raft:
    """A raft between two banks in a wind that turns now and then. A tenth of a point for every step on the water, at most 50 steps."""

    def reset(self):
        self.at, self.wind, self.left = 0.0, float(torch.randint(0, 2, ()) * 2 - 1), 50
        return self.seen()

    def seen(self):
        return torch.tensor([self.at / BANK, self.wind, abs(self.at) / BANK, 1.0])

    def step(self, action):
        self.at += (action - 1) * 1.0 + 0.6 * self.wind + 0.5 * float(torch.randn(()))
        if torch.rand(()) < 0.15:
            self.wind = -self.wind
        self.left -= 1
        if abs(self.at) > BANK:
            return None, 0.0, True
        return (None if self.left == 0 else self.seen()), 0.1, self.left == 0


class ActorCritic(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor = nn.Linear(width, 3)
        self.critic = nn.Linear(width, 1)

    def forward(self, seen):
        x = self.body(seen)
        return self.actor(x), self.critic(x).squeeze(-1)


@torch.no_grad()
def collect(model, env):
    """Whole episodes until the buffer has HORIZON steps."""
    seen, actions, logps, values, rewards, returns = [], [], [], [], [], []
    while len(seen) < HORIZON:
        state, done, total = env.reset(), False, 0.0
        while not done:
            logits, value = model(state)
            dist = Categorical(logits=logits)
            action = dist.sample()
            seen.append(state)
            actions.append(action)
            logps.append(dist.log_prob(action))
            values.append(value)
            state, reward, done = env.step(int(action))
            rewards.append(reward)
            total += reward
        returns.append(total)
    return (*(torch.stack(x) for x in (seen, actions, logps, values)), torch.tensor(rewards), returns)


def advantages_of(rewards, values):
    """GAE over the buffer."""
    out, running = torch.zeros_like(rewards), 0.0
    following = torch.cat([values[1:], torch.zeros(1)])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + GAMMA * following[t] - values[t]
        running = delta + GAMMA * LAMBDA * running
        out[t] = running
    return out


def loop(watch, steps=12):
    torch.manual_seed(4)
    model, env = ActorCritic(), Raft()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    w = watch(model, optimizer)
    for _ in range(steps):
        seen, actions, old, values, rewards, returns = collect(model, env)
        w.rewards(returns)
        advantages = advantages_of(rewards, values)
        targets = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(4):
            for part in torch.randperm(len(seen)).split(128):
                logits, value = model(seen[part])
                dist = Categorical(logits=logits)
                ratio = (dist.log_prob(actions[part]) - old[part]).exp()
                gain = torch.min(ratio * advantages[part], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[part]).mean()
                loss = -gain + 0.5 * (value - targets[part]).square().mean() - 0.01 * dist.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
