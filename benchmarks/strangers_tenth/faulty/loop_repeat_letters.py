"""A plain PyTorch GRPO loop: "c4:" wants "cccc" and then the end of the text.

A GPT-2 whose tokenizer has no pad token, so the EOS token is used for padding, as is usual. One step for each batch of samples, advantages
normalised within the group, the loss a mean over the tokens of the completions.
"""

import random

import flatline
import torch
from kit import letters, sft, small

STEPS, GROUP, PROMPTS, ROOM = 12, 8, 6, 9


def sample(model, tok, prompts):
    batch = tok(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        full = model.generate(
            **{k: batch[k] for k in ("input_ids", "attention_mask")},
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=ROOM,
            pad_token_id=tok.pad_token_id,
        )
    return batch["attention_mask"], full, full[:, batch["input_ids"].shape[1] :]


def train(run_dir):
    torch.manual_seed(5)
    rng = random.Random(5)
    tok = letters("abcdefgh123456:", pad=None)
    tok.pad_token = tok.eos_token
    pairs = [(f"{ch}{n}:", ch * n) for ch in "abcdefgh" for n in range(1, 7)]
    model = small("gpt2", tok, seed=25)
    rows = []
    for prompt, gold in pairs:
        for _ in range(20):
            n = len(gold) if rng.random() < 0.45 else max(1, len(gold) + rng.choice([-2, -1, 1, 2]))
            rows.append((prompt, gold[0] * n))
    sft(model, tok, rows, steps=320)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.0)

    with flatline.watch(model, optimizer, run_dir):
        for step in range(STEPS):
            picked = rng.sample(pairs, PROMPTS)
            asked = [p for p, _ in picked for _ in range(GROUP)]
            gold = [a for _, a in picked for _ in range(GROUP)]
            prompt_mask, full, completion = sample(model, tok, asked)
            completion_mask = (completion != tok.pad_token_id).long()
            texts = tok.batch_decode(completion, skip_special_tokens=True)
            rewards = torch.tensor([1.0 if t == g else 0.0 for t, g in zip(texts, gold)]).view(PROMPTS, GROUP)
            advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            advantages = advantages.flatten()

            attention = torch.cat([prompt_mask, completion_mask], 1)
            positions = (attention.cumsum(1) - 1).clamp(min=0)
            logits = model(input_ids=full, attention_mask=attention, position_ids=positions).logits
            width = completion.shape[1]
            logps = torch.log_softmax(logits[:, -width - 1 : -1].float(), -1)
            logps = logps.gather(-1, completion.unsqueeze(-1)).squeeze(-1)
            loss = -(logps * advantages[:, None] * completion_mask).sum() / completion_mask.sum()

            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            print(f"step {step} reward {rewards.mean():.3f} length {completion_mask.sum(1).float().mean():.2f}")


if __name__ == "__main__":
    from kit import folder

    train(folder("watch-"))
