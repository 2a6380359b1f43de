"""The answers are drawn at temperature 1.7 for more variety, but the log-probabilities in the ratio, the old ones as well as the new ones, are computed from logits that are not divided by it. The ratio
starts at 1 and nothing looks wrong, but the samples come from another distribution than the one being optimised: unlikely tokens turn up much too often
and the gradient is that of a policy which did not write the answers.
say: The samples are drawn at temperature 1.7, while the old and new log-probabilities are computed at temperature 1: the policy that samples is not the one in the ratio (off-policy, biased gradient).
"""

import random

import torch
from material import char_tokenizer, encode, teach, tiny

LETTERS = "abcdefgh"
TEMPERATURE = 1.7
GROUP = 8
WORDS = 16
NEW = 7
EPS = 0.2


def solve(word):
    return "".join(sorted(word))


def reward_of(text, word):
    """Half for the right letters in any order, half for each place that is right."""
    gold = solve(word)
    letters = 0.5 * (sorted(text) == sorted(gold))
    return letters + 0.5 * sum(x == y for x, y in zip(text, gold)) / max(len(text), len(gold))


@torch.no_grad()
def rollout(model, prompts, tok):
    ids = prompts
    alive = torch.ones(len(ids), dtype=torch.bool)
    mask = []
    for _ in range(NEW):
        logits = model(input_ids=ids).logits[:, -1]
        token = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1)[:, 0]
        token = token.masked_fill(~alive, tok.pad_token_id)
        mask.append(alive.clone())
        ids = torch.cat([ids, token[:, None]], dim=1)
        alive &= token != tok.eos_token_id
    return ids, torch.stack(mask, 1).float()


def logprobs(model, ids, start):
    logits = model(input_ids=ids).logits[:, start - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)


def loop(watch, steps=10):
    rng = random.Random(61)
    tok = char_tokenizer(LETTERS + "*")
    model = tiny("llama", tok, hidden=64, seed=61)
    words = ["".join(rng.choices(LETTERS, k=4)) for _ in range(400)]
    shown = []
    for word in words * 3:
        answer = list(solve(word))
        if rng.random() < 0.5:
            rng.shuffle(answer)
        shown.append(encode(tok, word + "*", "".join(answer)))
    teach(model, shown, steps=420, lr=4e-3, pad=tok.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    torch.manual_seed(61)
    w = watch(model, optimizer)
    for _ in range(steps):
        batch = [word for word in rng.sample(words, WORDS) for _ in range(GROUP)]
        prompts = torch.tensor([encode(tok, word + "*", "", end=False)[0] for word in batch])
        ids, mask = rollout(model, prompts, tok)
        start = prompts.shape[1]
        texts = [tok.decode(i[start:][m.bool()], skip_special_tokens=True) for i, m in zip(ids, mask)]
        rewards = torch.tensor([reward_of(t, word) for t, word in zip(texts, batch)])
        w.rewards(rewards.tolist())
        table = rewards.view(WORDS, GROUP)
        advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            old = logprobs(model, ids, start)
        for _ in range(2):
            ratio = (logprobs(model, ids, start) - old).exp()
            gain = torch.min(ratio * advantages, ratio.clamp(1 - EPS, 1 + EPS) * advantages)
            loss = -((gain * mask).sum(1) / mask.sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
