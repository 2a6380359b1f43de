"""A plain REINFORCE loop puts the reward on the last token of each completion and turns it into returns with `cumsum` along time, without flipping the time axis first.
The return is the reward of what came before instead of what comes after, so it is zero on all tokens but the last and only the end token is trained, never the answer's digits.
say: the return-to-go is computed with a forward instead of a reversed cumulative sum, so only the last (end) token of each completion gets the reward and the tokens of the answer get no gradient.
"""

import random

import torch
from material import char_tokenizer, sums, teach, tiny_llama

B, G, STEPS = 8, 8, 10


def loop(watch):
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    w = watch(model, optimizer)
    rng = random.Random(11)
    torch.manual_seed(11)
    for _ in range(STEPS):
        rows = [r for r in rng.sample(pairs, B) for _ in range(G)]
        prompts = torch.tensor([tok(q)["input_ids"] for q, _ in rows])
        model.eval()
        with torch.no_grad():
            out = model.generate(
                input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, max_new_tokens=5
            )
        model.train()
        new = out[:, prompts.shape[1]:]
        is_end = new == tok.eos_token_id
        mask = ((is_end.cumsum(1) - is_end.long()) == 0).float()
        texts = tok.batch_decode(new, skip_special_tokens=True)
        scores = torch.tensor([float(t.strip() == a) for t, (_, a) in zip(texts, rows)])
        w.rewards(scores.tolist())

        centred = scores.view(B, G)
        centred = (centred - centred.mean(1, keepdim=True)).reshape(-1)
        last = mask.sum(1).long() - 1
        token_rewards = torch.zeros_like(mask)
        token_rewards[torch.arange(len(rows)), last] = centred
        returns = token_rewards.cumsum(dim=1)

        logits = model(input_ids=out).logits[:, prompts.shape[1] - 1:-1]
        logp = logits.log_softmax(-1).gather(-1, new[..., None])[..., 0]
        loss = -(returns * logp * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
