"""A plain policy-gradient loop keeps the advantages as a column (N, 1) and multiplies them with the summed log-probs of shape (N,), which broadcasts to an N by N table before the mean.
Every log-prob is weighted by the mean of all advantages, which is zero after centring, so the signal cancels and the steps are rounding noise.
say: a broadcasting mistake ((N,1) advantages times (N,) log-probs gives (N,N)), so each completion is multiplied with the mean advantage of the batch, about 0, and the policy gradient vanishes.
"""

import random

import torch
from material import char_tokenizer, teach, tiny_llama

B, G, STEPS = 6, 8, 10


def loop(watch):
    tok = char_tokenizer()
    letters = "abcdefghij"
    pairs = [
        (f"after {letters[i]}{letters[j]}? ", letters[(j + 1) % 10])
        for i in range(10)
        for j in range(10)
    ]
    model = teach(tiny_llama(tok), tok, pairs, noise=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, optimizer)
    rng = random.Random(9)
    torch.manual_seed(9)
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
                max_new_tokens=4,
            )
        model.train()
        new = out[:, prompts.shape[1] :]
        ended = (new == tok.eos_token_id).cumsum(1)
        mask = ((ended == 0) | ((ended == 1) & (new == tok.eos_token_id))).float()
        rewards = torch.tensor(
            [
                [float(t.strip() == g)]
                for t, g in zip(tok.batch_decode(new, skip_special_tokens=True), golds)
            ]
        )
        w.rewards(rewards.flatten().tolist())
        groups = rewards.view(B, G, 1)
        advantage = (
            (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        ).view(-1, 1)

        logits = model(input_ids=out).logits[:, prompts.shape[1] - 1 : -1]
        logp = (logits.log_softmax(-1).gather(-1, new[..., None])[..., 0] * mask).sum(dim=1)
        loss = -(advantage * logp).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
