"""A loop of our own for a small Qwen2: "a_c:" asks for the letter in between, "b_a:" for nothing but a dash.

Group size 8, PPO clipping, one epoch, cosine schedule with a short warm-up, KL to the starting weights left out.
"""

import random

import flatline
import torch
from kit import letters, mixed, sft, small
from transformers import get_cosine_schedule_with_warmup

STEPS, GROUP, PROMPTS, ROOM, CLIP = 12, 8, 8, 4, 0.2
ABC = "abcdefghijklmnopqrst"


def token_logps(model, ids, attention, width):
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, -width:, None]).squeeze(-1)


def group_advantages(rewards, size):
    groups = rewards.view(-1, size)
    normed = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    return normed.view(-1)


def train(run_dir):
    torch.manual_seed(31)
    rng = random.Random(31)
    tok = letters(ABC + "_:-")
    pairs = [(f"{ABC[i]}_{ABC[i + 2]}:", ABC[i + 1]) for i in range(len(ABC) - 2)]
    pairs += [(f"{ABC[i + 1]}_{ABC[i]}:", "-") for i in range(0, len(ABC) - 1, 2)]
    model = small("qwen2", tok, seed=27)
    sft(model, tok, mixed(pairs, lambda r, a: r.choice(ABC + "---"), share=0.5, times=40), steps=300)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    schedule = get_cosine_schedule_with_warmup(optimizer, 1, STEPS + 2)
    schedule.step()

    with flatline.watch(model, optimizer, run_dir):
        for step in range(STEPS):
            picked = rng.sample(pairs, PROMPTS)
            asked = [p for p, _ in picked] * GROUP
            gold = [a for _, a in picked] * GROUP
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
            ends = (answer == tok.eos_token_id).long().cumsum(1)
            mask = ((ends == 0) | ((ends == 1) & (answer == tok.eos_token_id))).long()
            attention = torch.cat([batch["attention_mask"], mask], 1)
            texts = tok.batch_decode(answer, skip_special_tokens=True)
            rewards = torch.tensor([1.0 if t.strip() == g else 0.0 for t, g in zip(texts, gold)])
            advantages = group_advantages(rewards, GROUP)[:, None]
            with torch.no_grad():
                old = token_logps(model, full, attention, answer.shape[1])
            now = token_logps(model, full, attention, answer.shape[1])
            ratio = (now - old).exp()
            gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            loss = -(gain * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(f"step {step} reward {rewards.mean():.3f} lr {schedule.get_last_lr()[0]:.1e}")


if __name__ == "__main__":
    from kit import folder

    train(folder("watch-"))
