"""A loop with two copies of the policy: a sampler (in bf16, as an inference engine would have it) and the learner in fp32.

The sampler gets the learner's weights after every optimizer step. Since the two differ in precision, the samples are a little
off-policy; the old log-probabilities are therefore taken from the learner before its step. OPT, "is the number even or odd,
and is it more than fifty".
"""

import copy
import random

import flatline
import torch
from kit import mixed, pieces, sft, small

STEPS, GROUP, PROMPTS, ROOM = 10, 8, 6, 8


def deliver(learner, sampler):
    with torch.no_grad():
        source = dict(learner.named_parameters())
        for name, weight in sampler.named_parameters():
            weight.copy_(source[name])


def log_probs(model, ids, attention, start):
    logits = model(input_ids=ids, attention_mask=attention).logits[:, start - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[:, start:, None]).squeeze(-1)


def other(rng, answer):
    parts = answer.split(" ")
    where = rng.randrange(2)
    swaps = {"even": "odd", "odd": "even", "more": "less", "less": "more"}
    parts[where] = swaps[parts[where]]
    return " ".join(parts)


def train(run_dir):
    torch.manual_seed(29)
    rng = random.Random(29)
    pairs = [(f"{n}: ", f"{'odd' if n % 2 else 'even'} {'more' if n > 50 else 'less'}") for n in range(1, 100)]
    tok = pieces([p + a for p, a in pairs], size=300)
    learner = small("opt", tok, seed=13)
    sft(learner, tok, mixed(pairs, other, share=0.5, times=8), steps=260)
    sampler = copy.deepcopy(learner).to(torch.bfloat16).eval().requires_grad_(False)
    learner.train()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=4e-4, weight_decay=0.01)

    with flatline.watch(learner, optimizer, run_dir):
        for step in range(STEPS):
            picked = rng.sample(pairs, PROMPTS)
            asked = [p for p, _ in picked for _ in range(GROUP)]
            gold = [a for _, a in picked for _ in range(GROUP)]
            batch = tok(asked, return_tensors="pt", padding=True)
            start = batch["input_ids"].shape[1]
            full = sampler.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                do_sample=True,
                top_k=0,
                max_new_tokens=ROOM,
                pad_token_id=tok.pad_token_id,
            )
            answer = full[:, start:]
            over = (answer == tok.eos_token_id).cumsum(1)
            keep = ((over == 0) | ((over == 1) & (answer == tok.eos_token_id))).long()
            attention = torch.cat([batch["attention_mask"], keep], 1)
            said = tok.batch_decode(answer, skip_special_tokens=True)
            reward = torch.tensor([1.0 if t.strip() == g else 0.0 for t, g in zip(said, gold)])
            groups = reward.view(PROMPTS, GROUP)
            advantage = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
            advantage = advantage.flatten()[:, None]
            with torch.no_grad():
                old = log_probs(learner, full, attention, start)
            now = log_probs(learner, full, attention, start)
            ratio = (now - old).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = -((gain * keep).sum(1) / keep.sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            optimizer.step()
            deliver(learner, sampler)
            print(f"step {step} reward {reward.mean():.3f} spread {groups.std(1).mean():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    from kit import folder

    train(folder("watch-"))
