"""Plain REINFORCE with LoRA: one sample per prompt, so no groups at all, and the baseline is a running mean of the rewards for each length of word (it starts at the mean of the first batch).
Rewards are +1 and -1, never 0. The base weights are frozen and only the adapter is in the optimizer, at a rate that would be much
for full weights and is usual for LoRA. There is no ratio, no clipping of it and no KL: every batch is used once, with the weights that drew it, and the log-probability of an answer is the
sum over its tokens (the end token included), not the mean.
"""

import random

import torch
from material import char_tokenizer, encode, teach, tiny
from peft import LoraConfig, get_peft_model

LETTERS, BATCH, KEEP = "abcdefgh", 128, 0.8


def doubled(word):
    return "".join(c + c for c in word)


def loop(watch, steps=12):
    rng = random.Random(14)
    tok = char_tokenizer(LETTERS + ";")
    base = tiny("llama", tok, hidden=64, seed=14)
    rows = []
    for _ in range(2500):
        word = "".join(rng.choices(LETTERS, k=rng.choice((2, 3, 4))))
        answer = doubled(word)
        if rng.random() < 0.55:
            i = rng.randrange(len(answer))
            answer = answer[:i] + answer[i + 1 :] if rng.random() < 0.5 else answer[:i] + rng.choice(LETTERS) + answer[i:]
        rows.append(encode(tok, word + ";", answer))
    teach(base, rows, steps=450, lr=4e-3, pad=tok.pad_token_id)

    torch.manual_seed(14)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    model.eval()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    w = watch(model, optimizer)
    baseline = {}
    for _ in range(steps):
        # every batch has words of one length each, so nothing has to be padded in front
        loss, seen = 0.0, []
        for length in (2, 3, 4):
            words = ["".join(rng.choices(LETTERS, k=length)) for _ in range(BATCH // 3)]
            prompts = torch.tensor([encode(tok, x + ";", "", end=False)[0] for x in words])
            ids = model.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=10,
                pad_token_id=tok.pad_token_id,
            )
            answers = ids[:, prompts.shape[1] :]
            ended = (answers == tok.eos_token_id).long()
            counts = (ended.cumsum(1) - ended == 0).float()  # up to and with the first end token
            texts = [tok.decode(a[c.bool()], skip_special_tokens=True) for a, c in zip(answers, counts)]
            rewards = torch.tensor([1.0 if t == doubled(x) else -1.0 for t, x in zip(texts, words)])
            seen += rewards.tolist()
            before = baseline.get(length, rewards.mean().item())
            baseline[length] = KEEP * before + (1 - KEEP) * rewards.mean().item()
            attention = torch.cat([torch.ones_like(prompts), counts.long()], 1)
            logits = model(input_ids=ids, attention_mask=attention).logits[:, prompts.shape[1] - 1 : -1]
            logps = logits.log_softmax(-1).gather(-1, answers[..., None]).squeeze(-1)
            loss = loss - ((rewards - before) * (logps * counts).sum(1)).mean() / 3
        w.rewards(seen)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
