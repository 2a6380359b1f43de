"""An actor-critic loop uses advantage = reward - value without detaching the value in the policy loss. The policy term then also
trains the value head, which it pushes upwards wherever the log-probability is negative, so the values end far above the rewards,
nearly all advantages become negative and right answers are pushed down as well.
say: the advantage is not detached, so the policy loss sends gradient into the value head (inflating the values) instead of treating the advantage as a constant.
"""

import random

import torch
from material import char_tokenizer, half_right, one_letter_wrong, teach_rows, tiny_llama, words
from torch import nn

PROMPTS, SAMPLES, LIMIT, VALUE_WEIGHT = 24, 4, 6, 0.1


class ActorCritic(nn.Module):
    def __init__(self, lm, hidden):
        super().__init__()
        self.lm = lm
        self.critic = nn.Linear(hidden, 1)
        nn.init.zeros_(self.critic.weight)
        nn.init.constant_(self.critic.bias, 0.4)

    def forward(self, ids, mask, keep):
        out = self.lm(
            input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), output_hidden_states=True
        )
        logps = out.logits[:, -keep - 1 : -1].float().log_softmax(-1)
        logps = logps.gather(-1, ids[:, -keep:].unsqueeze(-1)).squeeze(-1)
        values = self.critic(out.hidden_states[-1][:, -keep - 1 : -1]).squeeze(-1)
        return logps, values


@torch.no_grad()
def sample(model, tok, prompts):
    heads = [tok(p)["input_ids"] for p in prompts]
    width = max(map(len, heads))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(h)) + h for h in heads])
    mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in heads])
    model.eval()
    out = model.lm.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=LIMIT, pad_token_id=tok.pad_token_id
    )
    model.train()
    new = out[:, width:]
    is_end = new == tok.eos_token_id
    valid = (is_end.long().cumsum(1) - is_end.long() == 0).long()
    texts = [tok.decode(row[m.bool()], skip_special_tokens=True) for row, m in zip(new, valid)]
    return out, torch.cat([mask, valid], 1), valid, texts


def loop(watch, steps=12):
    tok = char_tokenizer()
    lm = tiny_llama(tok, hidden=96)
    pairs = [(f"shift {w}: ", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in words(120, seed=8)]
    teach_rows(lm, half_right(tok, pairs, one_letter_wrong, right=0.4), tok.pad_token_id, steps=350)
    model = ActorCritic(lm, 96)
    optimizer = torch.optim.AdamW(
        [{"params": model.lm.parameters(), "lr": 3e-4}, {"params": model.critic.parameters(), "lr": 3e-3}], weight_decay=0.0
    )
    w = watch(model, optimizer)
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(steps):
        batch = [pair for pair in rng.sample(pairs, PROMPTS) for _ in range(SAMPLES)]
        ids, mask, valid, texts = sample(model, tok, [p for p, _ in batch])
        rewards = [1.0 if text == gold else 0.0 for text, (_, gold) in zip(texts, batch)]
        w.rewards(rewards)
        returns = torch.tensor(rewards).unsqueeze(1).expand(-1, valid.size(1))
        logps, values = model(ids, mask, valid.size(1))
        advantages = returns - values
        policy_loss = -(advantages * logps)
        value_loss = VALUE_WEIGHT * (values - returns) ** 2
        loss = ((policy_loss + value_loss) * valid).sum() / valid.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
