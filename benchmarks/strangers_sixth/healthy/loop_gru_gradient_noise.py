"""Plain PyTorch: a recurrent policy over a vocabulary of eight tokens, leave-one-out baseline, gradient noise.

Particular: no transformer and no attention mask, a GRU that carries its state; annealed Gaussian noise is added to the
gradients on purpose; RMSprop with a halving step schedule, no clipping; some groups have no spread and just add nothing;
an entropy bonus; reward is the share of how well "write n ones" was met.
"""

import torch
from torch import nn

ZERO, ONE, END, FIRST = 0, 1, 2, 3  # tokens 3..7 ask for 1..5 ones
STEPS, PROMPTS, GROUP, LENGTH = 12, 5, 32, 9


class Policy(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.table = nn.Embedding(8, 24)
        self.cell = nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, ids, state=None):
        hidden, state = self.cell(self.table(ids), state)
        return self.head(hidden), state


@torch.no_grad()
def sample(model, asked):
    token, state, done, tokens, alive = asked.unsqueeze(1), None, torch.zeros(len(asked), dtype=torch.bool), [], []
    for _ in range(LENGTH):
        logits, state = model(token, state)
        token = torch.multinomial(torch.softmax(logits[:, -1], -1), 1)
        token[done] = END
        alive.append(~done)
        tokens.append(token.squeeze(1))
        done = done | (token.squeeze(1) == END)
    return torch.stack(tokens, 1), torch.stack(alive, 1).float()


def teach(model, generator):
    """Random bit strings of about the right kind."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        n = torch.randint(1, 6, (64,), generator=generator)
        noisy = (n + torch.randint(-2, 3, (64,), generator=generator)).clamp(0, 6)
        rows = torch.full((64, LENGTH), END)
        for i, k in enumerate(noisy.tolist()):
            bits = [ONE] * k + [ZERO] * int(torch.randint(0, 3, (1,), generator=generator))
            order = torch.randperm(len(bits), generator=generator).tolist()
            rows[i, : len(bits)] = torch.tensor([bits[j] for j in order], dtype=torch.long)
        seen = torch.cat([(n + FIRST - 1).unsqueeze(1), rows[:, :-1]], 1)
        live = torch.cat([torch.ones(64, 1), (rows[:, :-1] != END).float()], 1)
        loss = nn.functional.cross_entropy(model(seen)[0].flatten(0, 1), rows.flatten(), reduction="none")
        optimizer.zero_grad()
        ((loss * live.flatten()).sum() / live.sum()).backward()
        optimizer.step()


def loop(watch):
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(3)
    model = Policy()
    teach(model, generator)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=6, gamma=0.5)
    w = watch(model, optimizer)
    for step in range(STEPS):
        asked = torch.arange(FIRST, FIRST + PROMPTS).repeat_interleave(GROUP)
        tokens, alive = sample(model, asked)
        ones = ((tokens == ONE).float() * alive).sum(1)
        want = (asked - FIRST + 1).float()
        ended = (tokens == END).any(1).float()
        rewards = (1 - (ones - want).abs() / 3).clamp(min=0) * (0.5 + 0.5 * ended)
        w.rewards(rewards.tolist())

        grouped = rewards.view(PROMPTS, GROUP)
        baseline = (grouped.sum(1, keepdim=True) - grouped) / (GROUP - 1)
        advantage = (grouped - baseline).flatten()
        seen = torch.cat([asked.unsqueeze(1), tokens[:, :-1]], 1)
        logp = torch.log_softmax(model(seen)[0], -1)
        chosen = logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        loss = -((chosen * alive).sum(1) * advantage).mean() - 0.005 * (entropy * alive).sum() / alive.sum()
        optimizer.zero_grad()
        loss.backward()
        scale = 0.02 / (1 + step) ** 0.55  # Neelakantan et al.: noise that fades
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad) * scale * p.grad.std())
        optimizer.step()
        schedule.step()


if __name__ == "__main__":

    class Print:
        def rewards(self, values):
            print(sum(values) / len(values))

    loop(lambda model, optimizer: Print())
