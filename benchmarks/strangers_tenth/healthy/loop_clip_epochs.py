"""A GRPO loop in plain PyTorch with PPO clipping: two passes over each batch of samples.

GPT-NeoX on "which of the two letters comes first in the alphabet". Group-normalised advantages, a k3 KL to a frozen copy of the starting
weights, gradient clipping at 1.0.
"""

import copy
import random

import flatline
import torch
from kit import letters, sft, small

GROUP, PROMPTS, ROUNDS, EPOCHS = 8, 12, 6, 2
ROOM, CLIP, BETA = 4, 0.2, 0.02
ALPHABET = "abcdefghijklmnop"


def token_logps(model, ids, attention, width):
    """Log-probabilities of the last `width` tokens of every row."""
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions).logits
    logits = logits[:, -width - 1 : -1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, -width:, None]).squeeze(-1)


def up_to_end(completion, eos):
    """1 for every token up to and including the first EOS."""
    ended = (completion == eos).long().cumsum(1)
    return ((ended == 0) | ((ended == 1) & (completion == eos))).long()


def train(run_dir):
    torch.manual_seed(3)
    rng = random.Random(3)
    tok = letters(ALPHABET + ",>")
    pairs = [(f"{x},{y}>", min(x, y)) for x in ALPHABET for y in ALPHABET if x != y]
    model = small("neox", tok, seed=10)
    rows = []
    for prompt, first in pairs:
        both = prompt[0], prompt[2]
        rows += [(prompt, first if rng.random() < 0.3 else rng.choice([*both, *both, "".join(both)])) for _ in range(6)]
    sft(model, tok, rows, steps=350)
    anchor = copy.deepcopy(model).eval().requires_grad_(False)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.0)

    with flatline.watch(model, optimizer, run_dir):
        for turn in range(ROUNDS):
            picked = rng.sample(pairs, PROMPTS)
            asked = [p for p, _ in picked for _ in range(GROUP)]
            gold = [a for _, a in picked for _ in range(GROUP)]
            batch = tok(asked, return_tensors="pt", padding=True)
            with torch.no_grad():
                model.eval()
                full = model.generate(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    max_new_tokens=ROOM,
                    pad_token_id=tok.pad_token_id,
                )
                model.train()
            completion = full[:, batch["input_ids"].shape[1] :]
            width = completion.shape[1]
            mask = up_to_end(completion, tok.eos_token_id)
            attention = torch.cat([batch["attention_mask"], mask], 1)
            texts = tok.batch_decode(completion, skip_special_tokens=True)
            reward = torch.tensor([1.0 if t.strip() == g else 0.0 for t, g in zip(texts, gold)])
            grouped = reward.view(PROMPTS, GROUP)
            advantage = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()
            with torch.no_grad():
                old = token_logps(model, full, attention, width)
                base = token_logps(anchor, full, attention, width)

            for _ in range(EPOCHS):
                now = token_logps(model, full, attention, width)
                ratio = torch.exp(now - old)
                adv = advantage[:, None]
                gain = torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
                gap = base - now
                kl = torch.exp(gap) - gap - 1
                loss = ((BETA * kl - gain) * mask).sum() / mask.sum()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            print(f"step {turn} reward {reward.mean():.3f} spread {grouped.std(1).mean():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    from kit import folder

    train(folder("watch-"))
