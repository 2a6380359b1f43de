"""A plain REINFORCE loop samples G answers for each prompt with `repeat_interleave`, so rows of one prompt are neighbours, and takes the baseline over dimension 0 of the rewards viewed as (G, B).
Each row's baseline and spread are then those of a mixture of other prompts' answers, and easy prompts are pushed up while hard ones are pushed down whatever was answered.
say: the rewards are grouped with the wrong layout (view(G, B) for rows made by repeat_interleave), so the group baseline mixes different prompts instead of the samples of one prompt.
"""

import random

import torch
from material import char_tokenizer, sums, teach, tiny_llama

B, G, STEPS = 6, 8, 10


def loop(watch):
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    w = watch(model, optimizer)
    rng = random.Random(5)
    torch.manual_seed(5)
    for _ in range(STEPS):
        rows = rng.sample(pairs, B)
        prompts = torch.tensor([tok(q)["input_ids"] for q, _ in rows]).repeat_interleave(G, dim=0)
        golds = [a for _, a in rows for _ in range(G)]
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
        texts = tok.batch_decode(new, skip_special_tokens=True)
        rewards = torch.tensor([float(t.strip() == g) for t, g in zip(texts, golds)])
        w.rewards(rewards.tolist())

        grouped = rewards.view(G, B)
        advantage = (grouped - grouped.mean(0, keepdim=True)) / (
            grouped.std(0, keepdim=True) + 1e-4
        )
        advantage = advantage.reshape(-1)

        logits = model(input_ids=out).logits[:, prompts.shape[1] - 1 : -1]
        logp = logits.log_softmax(-1).gather(-1, new[..., None])[..., 0]
        loss = -(advantage[:, None] * logp * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
