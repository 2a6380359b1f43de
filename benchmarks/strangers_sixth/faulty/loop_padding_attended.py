"""A plain policy-gradient loop samples from left-padded prompts of different lengths with an attention mask, but the forward pass of the loss gets the ids alone.
There the padding is attended to like text, so the log-probs that are trained are not those of the policy that sampled.
say: the training forward pass is called without the attention mask, so the left padding is attended, and the log-probs of padded rows differ from those under which the completions were sampled.
"""

import random

import torch
from material import char_tokenizer, teach, tiny_llama

B, G, STEPS = 8, 8, 10


def questions():
    rows = []
    for a in range(10):
        for b in range(10):
            rows.append((f"{a}+{b}=", str(a + b)))
            rows.append((f"what is {a} plus {b}? ", str(a + b)))
            rows.append((f"please tell me the sum of {a} and {b}: ", str(a + b)))
    return rows


def loop(watch):
    tok = char_tokenizer()
    pairs = questions()
    model = tiny_llama(tok)
    model = teach(model, tok, pairs, noise=0.4, steps=200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    w = watch(model, optimizer)
    rng = random.Random(3)
    torch.manual_seed(3)
    for _ in range(STEPS):
        rows = [r for r in rng.sample(pairs, B) for _ in range(G)]
        batch = tok([q for q, _ in rows], return_tensors="pt", padding=True, padding_side="left")
        width = batch["input_ids"].shape[1]
        model.eval()
        with torch.no_grad():
            sequences = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                do_sample=True, top_k=0, max_new_tokens=5,
            )
        model.train()
        new = sequences[:, width:]
        is_end = new == tok.eos_token_id
        mask = ((is_end.cumsum(1) - is_end.long()) == 0).float()
        texts = tok.batch_decode(new, skip_special_tokens=True)
        scores = torch.tensor([float(t.strip() == a) for t, (_, a) in zip(texts, rows)])
        w.rewards(scores.tolist())

        grouped = scores.view(B, G)
        advantage = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).reshape(-1)

        logits = model(sequences).logits[:, width - 1:-1]
        logp = logits.log_softmax(-1).gather(-1, new[..., None])[..., 0]
        loss = -(advantage[:, None] * logp * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
