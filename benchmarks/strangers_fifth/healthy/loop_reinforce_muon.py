"""Plain PyTorch REINFORCE with a running baseline, a KL penalty inside the reward, and a Muon-like optimizer.

Particular: one sample per prompt and no groups (the baseline is an exponential mean over past rewards); matrices are
stepped by orthogonalised momentum, so the size of a step does not follow the size of the gradient, and the rest by
Adam in the same optimizer object; gradient accumulation over four micro-batches; a frozen copy as the KL reference;
the reported rewards are the task's, without the KL part; linear decay of the rate.
"""

import copy
import random

import torch
from material import encode, teach, tiny, word_tokenizer

STEPS, MICRO, ROWS, LENGTH, KL = 10, 4, 24, 6, 0.02
COLOURS = "red blue green white black".split()
THINGS = "car house shirt door lamp chair".split()


class MuonAdam(torch.optim.Optimizer):
    def __init__(self, matrices, others, lr_matrix=0.01, lr_other=1e-3):
        super().__init__(
            [
                dict(params=matrices, lr=lr_matrix, muon=True),
                dict(params=others, lr=lr_other, muon=False),
            ],
            {},
        )

    @staticmethod
    def orthogonal(g, steps=5):
        x = g / (g.norm() + 1e-7)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for _ in range(steps):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["t"] += 1
                if group["muon"]:
                    s["m"].mul_(0.9).add_(p.grad)
                    update = self.orthogonal(p.grad + 0.9 * s["m"])
                    p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
                else:
                    s["m"].lerp_(p.grad, 0.1)
                    s["v"].lerp_(p.grad.square(), 0.01)
                    m, v = s["m"] / (1 - 0.9 ** s["t"]), s["v"] / (1 - 0.99 ** s["t"])
                    p.addcdiv_(m, v.sqrt() + 1e-8, value=-group["lr"])


def token_logps(model, ids, mask, start):
    logits = model(input_ids=ids, attention_mask=mask).logits[:, start - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)


def score(text, colour, thing):
    """0.5 for the thing, 0.5 for its colour right before it, 0.05 off for every word beyond three."""
    words = text.split()
    value = 0.5 * (thing in words) + 0.5 * (f"{colour} {thing}" in text)
    return value - 0.05 * max(0, len(words) - 3)


def loop(watch):
    rng = random.Random(4)
    tok = word_tokenizer(COLOURS + THINGS + "describe : colour thing the a".split())
    model = tiny("qwen2", tok, hidden=64, initializer_range=0.05)
    pairs = [(c, t) for c in COLOURS for t in THINGS]
    prompt = "describe : colour {} thing {} :".format
    lessons = []
    for _ in range(2500):
        c, t = rng.choice(pairs)
        said_c = c if rng.random() < 0.5 else rng.choice(COLOURS)
        said_t = t if rng.random() < 0.5 else rng.choice(THINGS)
        lessons.append(encode(tok, prompt(c, t), f"{rng.choice(['the', 'a'])} {said_c} {said_t}"))
    teach(model, lessons, steps=250, lr=2e-3, pad=tok.pad_token_id)
    reference = copy.deepcopy(model).requires_grad_(False).eval()

    matrices = [
        p
        for n, p in model.named_parameters()
        if p.ndim == 2 and "embed" not in n and "lm_head" not in n
    ]
    chosen = {id(p) for p in matrices}
    optimizer = MuonAdam(matrices, [p for p in model.parameters() if id(p) not in chosen])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - s / STEPS)
    w = watch(model, optimizer)
    torch.manual_seed(1)
    baseline = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        seen = []
        for _ in range(MICRO):
            batch = [rng.choice(pairs) for _ in range(ROWS)]
            heads = tok([prompt(c, t) for c, t in batch], return_tensors="pt")
            start = heads["input_ids"].shape[1]
            with torch.no_grad():
                ids = model.generate(
                    input_ids=heads["input_ids"], attention_mask=heads["attention_mask"], do_sample=True, top_k=0,
                    top_p=1.0, temperature=1.0, max_new_tokens=LENGTH, pad_token_id=tok.pad_token_id,
                    eos_token_id=tok.eos_token_id,
                )  # fmt: skip
            ended = (ids[:, start:] == tok.eos_token_id).int()
            keep = (ended.cumsum(1) - ended == 0).float()  # up to and including the EOS
            mask = torch.cat([heads["attention_mask"], keep.long()], 1)
            new = token_logps(model, ids, mask, start)
            with torch.no_grad():
                gap = ((new - token_logps(reference, ids, mask, start)) * keep).sum(1)
            texts = tok.batch_decode(ids[:, start:], skip_special_tokens=True)
            task = torch.tensor([score(x, c, t) for x, (c, t) in zip(texts, batch)])
            total = task - KL * gap
            seen += task.tolist()
            mean = total.mean().item()
            baseline = mean if baseline is None else baseline
            advantage = total - baseline
            baseline = 0.9 * baseline + 0.1 * mean
            loss = -(advantage.unsqueeze(1) * new * keep).sum(1).mean() / MICRO
            loss.backward()
        w.rewards(seen)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


if __name__ == "__main__":

    class Print:
        def rewards(self, values):
            print(sum(values) / len(values))

    loop(lambda model, optimizer: Print())
