"""A plain loop splits each batch of eight prompts into four micro-batches and accumulates their gradients, but `zero_grad` stands inside the loop over the micro-batches.
Each micro-batch wipes the gradient of the one before, so a step uses only the last quarter of the samples, scaled by a quarter.
say: zero_grad is called before every micro-batch, so the accumulated gradients are thrown away and only the last micro-batch reaches the optimizer step.
"""

import random

import torch
from material import char_tokenizer, sums, teach, tiny_llama

PROMPTS, G, MICRO, STEPS = 8, 6, 4, 10


def sample(model, tok, prompts):
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=6,
        )
    model.train()
    new = out[:, prompts.shape[1] :]
    ended = (new == tok.eos_token_id).cumsum(1)
    mask = ((ended == 0) | ((ended == 1) & (new == tok.eos_token_id))).float()
    return out, new, mask


def loop(watch):
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    w = watch(model, optimizer)
    rng = random.Random(2)
    torch.manual_seed(2)
    for _ in range(STEPS):
        rows = rng.sample(pairs, PROMPTS)
        prompts = torch.tensor([tok(q)["input_ids"] for q, _ in rows]).repeat_interleave(G, dim=0)
        golds = [a for _, a in rows for _ in range(G)]
        out, new, mask = sample(model, tok, prompts)
        texts = tok.batch_decode(new, skip_special_tokens=True)
        rewards = torch.tensor([float(t.strip() == g) for t, g in zip(texts, golds)])
        w.rewards(rewards.tolist())
        grouped = rewards.view(PROMPTS, G)
        advantage = (
            (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        ).reshape(-1)

        start = prompts.shape[1]
        for part in torch.arange(len(out)).chunk(MICRO):
            optimizer.zero_grad()
            logits = model(input_ids=out[part]).logits[:, start - 1 : -1]
            logp = logits.log_softmax(-1).gather(-1, new[part][..., None])[..., 0]
            loss = -(advantage[part, None] * logp * mask[part]).sum() / mask[part].sum()
            (loss / MICRO).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
