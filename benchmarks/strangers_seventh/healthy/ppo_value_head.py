"""A plain PPO loop: a value head, GAE, two epochs of two shuffled minibatches, clipped policy and value losses, an entropy
bonus and advantages whitened over all tokens of the batch. The value head starts at zero and learns at a higher
rate than the policy; there are no group baselines although every prompt is sampled four times."""

import random

import torch
from material import char_tokenizer, half_right, teach, tiny
from torch import nn

CLIP, VALUE_CLIP, LAMBDA, ENTROPY = 0.2, 0.3, 0.95, 0.003
LIMIT = 6


class ActorCritic(nn.Module):
    def __init__(self, lm, hidden):
        super().__init__()
        self.lm = lm
        self.value = nn.Linear(hidden, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, ids, mask, keep):
        """Log-probabilities, entropies and values for the last `keep` tokens of each row."""
        out = self.lm(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            output_hidden_states=True,
        )
        logp = out.logits[:, -keep - 1 : -1].float().log_softmax(-1)  # position t predicts token t + 1
        chosen = logp.gather(-1, ids[:, -keep:].unsqueeze(-1)).squeeze(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        values = self.value(out.hidden_states[-1][:, -keep - 1 : -1].detach()).squeeze(-1)
        return chosen, entropy, values


def tasks():
    rng = random.Random(2)
    words = {"".join(rng.sample("abcdefgh", rng.choice([2, 3]))) for _ in range(200)}
    return [(f"next {w}>", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in sorted(words)]


def slip(rng, answer):
    letters = list(answer)
    i = rng.randrange(len(letters))
    letters[i] = rng.choice([c for c in "abcdefgh" if c != letters[i]])
    return "".join(letters)


def rollout(model, tok, prompts):
    """Sampled completions: token ids, the mask of the whole rows and the mask of the completion (with its end token)."""
    heads = [tok(p)["input_ids"] for p in prompts]
    width = max(map(len, heads))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(h)) + h for h in heads])
    mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in heads])
    model.eval()
    with torch.no_grad():
        out = model.lm.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=LIMIT, pad_token_id=tok.pad_token_id
        )
    model.train()
    new = out[:, width:]
    ended = (new == tok.eos_token_id).long().cumsum(1)
    valid = ((ended - (new == tok.eos_token_id).long()) == 0).long()  # up to the first end token, with it
    return out, torch.cat([mask, valid], 1), valid


def gae(rewards, values, valid):
    """Advantages and returns; the reward arrives at the last token and nothing is discounted."""
    last = valid.sum(1) - 1
    advantages = torch.zeros_like(values)
    carry = torch.zeros(values.size(0))
    for t in reversed(range(values.size(1))):
        following = values[:, t + 1] * valid[:, t + 1] if t + 1 < values.size(1) else torch.zeros_like(carry)
        delta = rewards * (last == t) + following - values[:, t]
        carry = (delta + LAMBDA * carry) * valid[:, t]
        advantages[:, t] = carry
    return advantages, advantages + values


def loop(watch, steps=12):
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz >", padding_side="left")
    lm = tiny("llama", tok, hidden=96)
    data = tasks()
    teach(lm, half_right(tok, data, slip, right=0.5, copies=15), steps=300, lr=2e-3, pad=tok.pad_token_id)
    model = ActorCritic(lm, 96)
    optimizer = torch.optim.AdamW(
        [{"params": lm.parameters(), "lr": 2e-4}, {"params": model.value.parameters(), "lr": 1e-2}], weight_decay=0.0
    )
    w = watch(model, optimizer)
    rng = random.Random(0)
    torch.manual_seed(0)
    done = 0
    while done < steps:
        chosen = [item for item in rng.sample(data, 32) for _ in range(4)]
        ids, mask, valid = rollout(model, tok, [p for p, _ in chosen])
        keep = valid.size(1)
        texts = tok.batch_decode([row[m.bool()] for row, m in zip(ids[:, -keep:], valid)], skip_special_tokens=True)
        rewards = [1.0 if text == gold else 0.0 for text, (_, gold) in zip(texts, chosen)]
        w.rewards(rewards)
        with torch.no_grad():
            old, _, old_values = model(ids, mask, keep)
            advantages, returns = gae(torch.tensor(rewards), old_values, valid)
            flat = advantages[valid.bool()]
            advantages = (advantages - flat.mean()) / (flat.std() + 1e-6)
        for _ in range(2):
            for part in torch.randperm(len(rewards)).chunk(2):
                new, entropy, values = model(ids[part], mask[part], keep)
                m = valid[part].float()
                ratio = (new - old[part]).exp()
                a = advantages[part]
                policy = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a)
                near = old_values[part] + (values - old_values[part]).clamp(-VALUE_CLIP, VALUE_CLIP)
                value = 0.5 * torch.max((values - returns[part]) ** 2, (near - returns[part]) ** 2)
                loss = ((policy + value - ENTROPY * entropy) * m).sum() / m.sum()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                done += 1
