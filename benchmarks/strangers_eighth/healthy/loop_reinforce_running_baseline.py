"""REINFORCE with a running baseline and nothing else: a causal convolutional writer gets a target sum and has to write four digits
with that sum. It samples at temperature 0.7 and trains the log-probabilities at the same temperature. Rewards are negative costs
(minus the distance, with a charge for repeating a digit). Gradients of five small batches are added up by hand, SGD with Nesterov
momentum, the step size halves towards the end. The reward is noisy from step to step."""

import torch
import torch.nn.functional as F
from torch import nn

DIGITS, COUNT, TEMPERATURE = 10, 4, 0.7
LOW, HIGH = 6, 30


class CausalConv(nn.Module):
    """Embedding of the sum and of the digits so far; two dilated convolutions over the past only."""

    def __init__(self, width=48):
        super().__init__()
        self.sums = nn.Embedding(HIGH + 1, width)
        self.digits = nn.Embedding(DIGITS + 1, width)
        self.left = nn.Parameter(torch.randn(37 * 2, width) * 0.1)
        self.first = nn.Conv1d(width, width, 3)
        self.second = nn.Conv1d(width, width, 2)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, DIGITS)

    def forward(self, total, digits):
        """Scores of the digit after each of [start, d1, d2, ...]."""
        start = torch.full((len(digits), 1), DIGITS)
        rest = total[:, None] - F.pad(digits.cumsum(1), (1, 0))
        x = self.digits(torch.cat([start, digits], 1)) + self.sums(total)[:, None] + self.left[rest.clamp(-36, 36) + 36]
        y = F.gelu(self.first(F.pad(x.transpose(1, 2), (2, 0))))
        y = F.gelu(self.second(F.pad(y, (1, 0)))).transpose(1, 2)
        return self.out(self.norm(x + y))


@torch.no_grad()
def sample(model, total):
    digits = torch.zeros(len(total), 0, dtype=torch.long)
    for _ in range(COUNT):
        probs = (model(total, digits)[:, -1] / TEMPERATURE).softmax(-1)
        digits = torch.cat([digits, torch.multinomial(probs, 1)], 1)
    return digits


def cost(total, digits):
    repeats = (digits[:, 1:] == digits[:, :-1]).sum(1)
    return -(digits.sum(1) - total).abs().float() / 3 - 0.25 * repeats


def imitate(model, steps=250):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        digits = torch.randint(0, 10, (64, COUNT))
        total = (digits.sum(1) + torch.randint(-2, 3, (64,))).clamp(LOW, HIGH)  # sloppy examples
        loss = F.cross_entropy(model(total, digits[:, :-1]).flatten(0, 1), digits.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop(watch, steps=12):
    torch.manual_seed(1)
    model = CausalConv()
    imitate(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.6, nesterov=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8], gamma=0.5)
    w = watch(model, optimizer)
    baseline = None
    parts = 5
    for _ in range(steps):
        optimizer.zero_grad()
        seen = []
        for _ in range(parts):
            total = torch.randint(LOW, HIGH + 1, (40,))
            digits = sample(model, total)
            reward = cost(total, digits)
            seen.append(reward)
            level = reward.mean() if baseline is None else baseline
            logits = model(total, digits[:, :-1]) / TEMPERATURE
            logp = logits.log_softmax(-1).gather(2, digits[:, :, None]).squeeze(2).sum(1)
            (-(logp * (reward - level)).mean() / parts).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        reward = torch.cat(seen)
        w.rewards(reward.tolist())
        baseline = reward.mean() if baseline is None else 0.7 * baseline + 0.3 * reward.mean()
