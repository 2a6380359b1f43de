"""Log-probabilities are shifted (entry t belongs to token t + 1) but the completion mask is cut as mask[:, :-1] instead of mask[:, 1:].
The loss leaves out the first token of every completion, which is the whole answer here, and takes in the padding after the
end token instead, so the reward hardly moves.
say: the loss mask is not shifted with the labels (mask[:, :-1] instead of mask[:, 1:]), so the first completion token is never trained and the token after the end is.
"""

import random

import torch
from material import char_tokenizer, half_right, teach_rows, tiny_llama

GROUP, PROMPTS, LIMIT = 8, 12, 4


def questions():
    """`after c in ch? ` asks for the letter after c in the alphabet (a after h); the number of letters varies."""
    rng = random.Random(0)
    out = set()
    while len(out) < 100:
        word = "".join(rng.sample("abcdefgh", rng.randrange(2, 5)))
        c = rng.choice(word)
        out.add((f"after {c} in {word}? ", chr((ord(c) - 97 + 1) % 8 + 97)))
    return sorted(out)


def other_letter(rng, answer):
    return rng.choice([c for c in "abcdefgh" if c != answer]) + rng.choice(["", "", "!"])


@torch.no_grad()
def sample(model, tok, prompts):
    """All ids (prompt left-padded, completion padded after its end token), attention mask, completion mask, texts."""
    heads = [tok(p)["input_ids"] for p in prompts]
    width = max(map(len, heads))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(h)) + h for h in heads])
    mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in heads])
    model.eval()
    out = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=LIMIT, pad_token_id=tok.pad_token_id
    )
    model.train()
    new = out[:, width:]
    ended = new == tok.eos_token_id
    valid = (ended.long().cumsum(1) - ended.long() == 0).long()
    texts = tok.batch_decode(new, skip_special_tokens=True)
    return out, torch.cat([mask, torch.ones_like(valid)], 1), torch.cat([torch.zeros_like(mask), valid], 1), texts


def loop(watch, steps=12):
    tok = char_tokenizer()
    policy = tiny_llama(tok, hidden=96)
    data = questions()
    teach_rows(policy, half_right(tok, data, other_letter, right=0.5), tok.pad_token_id, steps=350)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=4e-4, weight_decay=0.0)
    w = watch(policy, optimizer)
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(steps):
        batch = [item for item in rng.sample(data, PROMPTS) for _ in range(GROUP)]
        ids, attention, completion_mask, texts = sample(policy, tok, [p for p, _ in batch])
        rewards = [1.0 if text == gold else 0.0 for text, (_, gold) in zip(texts, batch)]
        w.rewards(rewards)
        grouped = torch.tensor(rewards).view(PROMPTS, GROUP)
        advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        logits = policy(input_ids=ids, attention_mask=attention, position_ids=positions).logits[:, :-1]
        logps = logits.float().log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        mask = completion_mask[:, :-1]
        loss = -(advantages * logps * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
