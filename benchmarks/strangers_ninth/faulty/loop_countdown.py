"""The log-probability of a token is read from the logits at the token's own position. Those logits predict the next token; the right ones stand one position further left. The shapes agree, because prompt and
answer are sliced alike, and the ratio begins at 1, but what is made likelier after a good answer is that each token repeats itself.
say: Off-by-one: the logits are not shifted against the tokens (logits[:, start:] instead of logits[:, start-1:-1]), so the log-probabilities belong to the wrong positions.
"""

import random

import torch
from material import char_tokenizer, encode, teach, tiny


def countdown(n, stride):
    return "".join(str(k) for k in range(n, -1, -stride))


def grade(text, gold):
    if text == gold:
        return 1.0
    agreeing = 0
    for a, b in zip(text, gold):
        if a != b:
            break
        agreeing += 1
    return 0.5 * agreeing / len(gold)


class Trainer:
    def __init__(self, model, tok, lr, group=8, longest=12):
        self.model, self.tok, self.group, self.longest = model, tok, group, longest
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def sample(self, prompts):
        self.model.eval()
        with torch.no_grad():
            ids = self.model.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                max_new_tokens=self.longest,
                pad_token_id=self.tok.pad_token_id,
            )
        answers = ids[:, prompts.shape[1] :]
        stop = (answers == self.tok.eos_token_id).long()
        return ids, (stop.cumsum(1) - stop).eq(0).float()

    def logps(self, ids, start):
        logits = self.model(input_ids=ids).logits[:, start:]
        chosen = ids[:, start:]
        return logits.log_softmax(-1).gather(2, chosen.unsqueeze(2)).squeeze(2)

    def step(self, tasks):
        rows = [t for t in tasks for _ in range(self.group)]
        prompts = torch.tensor([encode(self.tok, p, "", end=False)[0] for p, _ in rows])
        start = prompts.shape[1]
        ids, real = self.sample(prompts)
        texts = [self.tok.decode(a[r.bool()], skip_special_tokens=True) for a, r in zip(ids[:, start:], real)]
        rewards = torch.tensor([grade(t, g) for t, (_, g) in zip(texts, rows)])
        per_task = rewards.view(len(tasks), self.group)
        # leave-one-out baseline
        others = (per_task.sum(1, keepdim=True) - per_task) / (self.group - 1)
        advantages = (per_task - others).flatten()
        loss = -(advantages * (self.logps(ids, start) * real).sum(1)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return rewards.tolist()


def loop(watch, steps=12):
    rng = random.Random(72)
    tok = char_tokenizer("0123456789/:")
    model = tiny("gpt_neox", tok, hidden=64, seed=72)
    tasks = [(f"{n}/{s}:", countdown(n, s)) for n in range(2, 10) for s in (1, 2, 3)]
    rows = []
    for prompt, gold in tasks:
        for _ in range(40):
            answer = gold
            if rng.random() < 0.5:
                i = rng.randrange(len(gold))
                answer = gold[:i] + rng.choice("0123456789") + gold[i + rng.choice((0, 1)) :]
            rows.append(encode(tok, prompt, answer))
    teach(model, rows, steps=400, lr=4e-3, pad=tok.pad_token_id)
    torch.manual_seed(72)
    trainer = Trainer(model, tok, lr=4e-4)
    w = watch(model, trainer.optimizer)
    for _ in range(steps):
        w.rewards(trainer.step(rng.sample(tasks, 12)))
