"""REINFORCE with a leave-one-out baseline, written out: four micro-batches are accumulated into every optimizer step.

GPT-2, prompts of different lengths (left-padded, positions counted from the first real token). The loss of a micro-batch is the sum over its
tokens divided by the number of tokens of the whole batch, so that the accumulated gradient is that of the full batch. Cosine schedule.
Task: say the word backwards.
"""

import math
import random

import flatline
import torch
from kit import letters, mixed, sft, small

STEPS, GROUP, PROMPTS, MICRO, ROOM = 10, 4, 16, 4, 7


def backwards(text, gold):
    """The share of letters in place; full marks only for the exact word."""
    same = sum(x == y for x, y in zip(text, gold)) / max(len(text), len(gold), 1)
    return 1.0 if text == gold else 0.5 * same


def jumble(rng, answer):
    mixed_up = list(answer)
    rng.shuffle(mixed_up)
    return "".join(mixed_up)[: rng.randint(2, len(answer))]


def train(run_dir):
    torch.manual_seed(17)
    rng = random.Random(17)
    tok = letters("abcdefgh/")
    made = sorted({"".join(rng.choices("abcdefgh", k=rng.randint(3, 5))) for _ in range(300)})
    pairs = [(w + "/", w[::-1]) for w in made]
    model = small("gpt2", tok, seed=2)
    sft(model, tok, mixed(pairs, jumble, share=0.6, times=6), steps=420)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.1 + 0.45 * (1 + math.cos(math.pi * s / STEPS)))

    with flatline.watch(model, optimizer, run_dir):
        for step in range(STEPS):
            picked = rng.sample(pairs, PROMPTS)
            asked = [p for p, _ in picked for _ in range(GROUP)]
            gold = [a for _, a in picked for _ in range(GROUP)]
            batch = tok(asked, return_tensors="pt", padding=True)
            start = batch["input_ids"].shape[1]
            with torch.no_grad():
                full = model.generate(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=ROOM,
                    pad_token_id=tok.pad_token_id,
                )
            answer = full[:, start:]
            over = (answer == tok.eos_token_id).cumsum(1)
            keep = (over == 0) | ((over == 1) & (answer == tok.eos_token_id))
            attention = torch.cat([batch["attention_mask"], keep.long()], 1)
            said = [t.strip() for t in tok.batch_decode(answer, skip_special_tokens=True)]
            reward = torch.tensor([backwards(t, g) for t, g in zip(said, gold)])
            groups = reward.view(PROMPTS, GROUP)
            others = (groups.sum(1, keepdim=True) - groups) / (GROUP - 1)
            advantage = (groups - others).flatten()

            tokens = keep.sum()
            optimizer.zero_grad()
            total = 0.0
            for rows in torch.arange(len(full)).chunk(MICRO):
                where = (attention[rows].cumsum(1) - 1).clamp(min=0)
                logits = model(input_ids=full[rows], attention_mask=attention[rows], position_ids=where).logits
                logps = torch.log_softmax(logits[:, start - 1 : -1].float(), -1)
                logps = logps.gather(-1, answer[rows].unsqueeze(-1)).squeeze(-1)
                loss = -(logps * advantage[rows, None] * keep[rows]).sum() / tokens
                loss.backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(f"step {step} reward {reward.mean():.3f} exact {(reward == 1).float().mean():.3f} loss {total:.4f}")


if __name__ == "__main__":
    from kit import folder

    train(folder("watch-"))
