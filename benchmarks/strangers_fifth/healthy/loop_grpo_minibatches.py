"""Plain PyTorch GRPO: sample, group-normalise, several clipped mini-batch updates per sampling round.

Particular: several optimizer steps for one call of `w.rewards`; the old log-probabilities are kept from sampling time;
mini-batches mix the groups; right padding after left-aligned prompts of equal length; token mean over each mini-batch;
unused rows (groups without spread) are dropped from the updates as in DAPO's dynamic sampling.
"""

import random

import torch
from material import char_tokenizer, encode, teach, tiny

ROUNDS, PROMPTS, GROUP, LENGTH = 6, 20, 8, 5


def logps(model, ids, mask, start):
    """Log-probability of every token from `start` on."""
    logits = model(input_ids=ids, attention_mask=mask).logits[:, start - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def sample(model, prompt_ids, eos, pad):
    ids = torch.tensor(prompt_ids)
    done = torch.zeros(len(ids), dtype=torch.bool)
    keep = []
    for _ in range(LENGTH):
        probs = torch.softmax(model(input_ids=ids).logits[:, -1].float(), -1)
        token = torch.multinomial(probs, 1).squeeze(1)
        token = torch.where(done, torch.full_like(token, pad), token)
        keep.append(~done)
        done = done | (token == eos)
        ids = torch.cat([ids, token.unsqueeze(1)], 1)
    return ids, torch.stack(keep, 1).float()


def loop(watch):
    rng = random.Random(1)
    tok = char_tokenizer("0123456789+=")
    model = tiny("llama", tok, hidden=64, initializer_range=0.05)
    problems = [(f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10)]
    lessons = []
    for _ in range(3000):
        p, a = rng.choice(problems)
        said = a if rng.random() < 0.4 else str(rng.randint(0, 18))
        lessons.append(encode(tok, p, said))
    teach(model, lessons, steps=350, lr=2e-3, pad=tok.pad_token_id, batch=48)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    w = watch(model, optimizer)
    torch.manual_seed(0)
    for _ in range(ROUNDS):
        chosen = rng.sample(problems, PROMPTS)
        prompts = [p for p, _ in chosen for _ in range(GROUP)]
        answers = [a for _, a in chosen for _ in range(GROUP)]
        heads = tok(text=prompts)["input_ids"]
        start = len(heads[0])
        model.eval()
        ids, keep = sample(model, heads, tok.eos_token_id, tok.pad_token_id)
        texts = tok.batch_decode(ids[:, start:], skip_special_tokens=True)
        rewards = torch.tensor([1.0 if t == a else 0.0 for t, a in zip(texts, answers)])
        w.rewards(rewards.tolist())

        grouped = rewards.view(PROMPTS, GROUP)
        advantage = (
            (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        ).flatten()
        useful = torch.nonzero((grouped.std(1) > 0).repeat_interleave(GROUP)).squeeze(1)
        if not len(useful):
            continue
        mask = torch.cat([torch.ones(len(ids), start), keep], 1).long()
        with torch.no_grad():
            old = logps(model, ids, mask, start)

        model.train()
        order = useful[torch.randperm(len(useful))]
        for part in order.chunk(2):
            new = logps(model, ids[part], mask[part], start)
            ratio = torch.exp(new - old[part])
            gain = advantage[part].unsqueeze(1)
            surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.28) * gain)
            loss = -(surrogate * keep[part]).sum() / keep[part].sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":

    class Print:
        def rewards(self, values):
            print(sum(values) / len(values))

    loop(lambda model, optimizer: Print())
