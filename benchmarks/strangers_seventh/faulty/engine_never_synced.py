"""A plain GRPO loop samples from a separate engine with its own copy of the weights, and engine.sync is called once before the
loop instead of after every update. All samples come from the initial policy, without any ratio to correct for it, so the
reward never rises and the policy drifts away from the samples it is trained on.
say: the sampling engine's copy of the weights is never refreshed inside the loop, so the completions come from the stale initial policy while the log-probabilities and updates are the current policy's.
"""

import copy
import random

import torch
from material import char_tokenizer, half_right, one_letter_wrong, teach_rows, tiny_llama, words

GROUP, PROMPTS, LIMIT = 8, 12, 6


class Engine:
    """Fast sampling: an own frozen copy of the policy in inference mode."""

    def __init__(self, policy, tok):
        self.model = copy.deepcopy(policy).eval().requires_grad_(False)
        self.tok = tok

    def sync(self, policy):
        self.model.load_state_dict(policy.state_dict())

    @torch.no_grad()
    def sample(self, prompts):
        """Rows of (prompt ids, completion ids); the completion ends with its end token."""
        heads = [self.tok(p)["input_ids"] for p in prompts]
        width = max(map(len, heads))
        pad = self.tok.pad_token_id
        ids = torch.tensor([[pad] * (width - len(h)) + h for h in heads])
        mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in heads])
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, temperature=1.0, max_new_tokens=LIMIT, pad_token_id=pad
        )
        rows = []
        for head, new in zip(heads, out[:, width:].tolist()):
            end = self.tok.eos_token_id
            rows.append((head, new[: new.index(end) + 1] if end in new else new))
        return rows


def token_logps(model, rows, pad):
    width = max(len(h) + len(c) for h, c in rows)
    ids = torch.tensor([h + c + [pad] * (width - len(h + c)) for h, c in rows])
    seen = torch.tensor([[1] * len(h + c) + [0] * (width - len(h + c)) for h, c in rows])
    mine = torch.tensor([[0] * len(h) + [1] * len(c) + [0] * (width - len(h + c)) for h, c in rows])
    logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1].float()
    logps = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return logps, mine[:, 1:].float()


def loop(watch, steps=12):
    tok = char_tokenizer()
    policy = tiny_llama(tok, hidden=96)
    pairs = [(f"shift {w}: ", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in words(120, seed=6)]
    teach_rows(policy, half_right(tok, pairs, one_letter_wrong, right=0.4), tok.pad_token_id, steps=350)
    policy.train()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, weight_decay=0.0)
    w = watch(policy, optimizer)
    engine = Engine(policy, tok)
    engine.sync(policy)
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(steps):
        batch = [pair for pair in rng.sample(pairs, PROMPTS) for _ in range(GROUP)]
        rows = engine.sample([p for p, _ in batch])
        texts = [tok.decode(c, skip_special_tokens=True) for _, c in rows]
        rewards = [1.0 if text == gold else 0.0 for text, (_, gold) in zip(texts, batch)]
        w.rewards(rewards)
        grouped = torch.tensor(rewards).view(PROMPTS, GROUP)
        advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        logps, mask = token_logps(policy, rows, tok.pad_token_id)
        loss = -(advantages.view(-1, 1) * logps * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
