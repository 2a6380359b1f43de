"""The sampler of a recurrent policy keeps its hidden state in the object so that it need not read the prompt again for every token, and
does not clear it between batches: each rollout begins in the state in which the previous one ended. In training the network reads the
same tokens from a zero state. The log-probabilities that are trained are those of another distribution than the one which wrote the
samples, and the policy that samples is confused by what it remembers.
say: The recurrent hidden state is not reset between rollouts (it is carried over from the batch before), while training starts from a zero state, so sampling and training use different policies.
"""

import torch
import torch.nn.functional as F
from torch import nn

SYMBOLS, START, ASK = 6, 6, 7
LENGTH, PROMPTS, GROUP = 4, 12, 8


class Memory(nn.Module):
    def __init__(self, width=72):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS + 2, 24)
        self.lstm = nn.LSTM(24, width, batch_first=True)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, tokens, state=None):
        out, state = self.lstm(self.embed(tokens), state)
        return self.head(out), state


class Sampler:
    """Writes one token after the other; the state lives here."""

    def __init__(self, model):
        self.model = model
        self.state = None

    def feed(self, tokens):
        logits, self.state = self.model(tokens, self.state)
        return logits[:, -1]

    @torch.no_grad()
    def write(self, prompts):
        logits, out = self.feed(prompts), []
        for _ in range(LENGTH):
            token = torch.multinomial(logits.softmax(-1), 1)
            out.append(token)
            logits = self.feed(token)
        return torch.cat(out, 1)


def questions(count):
    """Symbols to be shifted by one and given back in the same order."""
    symbols = torch.randint(0, SYMBOLS, (count, LENGTH))
    head = torch.cat([torch.full((count, 1), START), symbols, torch.full((count, 1), ASK)], 1)
    return head, (symbols + 1) % SYMBOLS


def pretrain(model, steps=400):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1 - step / steps)
        head, target = questions(64)
        shown = torch.where(torch.rand(target.shape) < 0.3, torch.randint(0, SYMBOLS, target.shape), target)
        logits, _ = model(torch.cat([head, shown[:, :-1]], 1))
        loss = F.cross_entropy(logits[:, -LENGTH:].flatten(0, 1), shown.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop(watch, steps=12):
    torch.manual_seed(2)
    model = Memory()
    pretrain(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    w = watch(model, optimizer)
    sampler = Sampler(model)
    for _ in range(steps):
        head, target = questions(PROMPTS)
        head, target = head.repeat_interleave(GROUP, 0), target.repeat_interleave(GROUP, 0)
        written = sampler.write(head)
        rewards = (written == target).float().mean(1)
        w.rewards(rewards.tolist())
        grouped = rewards.view(PROMPTS, GROUP)
        advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        logits, _ = model(torch.cat([head, written[:, :-1]], 1))
        logp = logits[:, -LENGTH:].log_softmax(-1).gather(2, written[:, :, None]).squeeze(2)
        loss = -(logp * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
