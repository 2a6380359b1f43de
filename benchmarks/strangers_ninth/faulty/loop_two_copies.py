"""The answers are written by a second copy of the model (as by an inference server), which gets the weights of the LoRA-trained policy before every batch. But the names in the policy's state dict have peft's prefix and
the adapter's suffixes, none of them fits the plain copy, and strict=False swallows that: nothing is ever loaded. All the answers come from the model as it was at
the start, and the more the policy learns, the staler they are.
say: The sampler copy never gets new weights: load_state_dict(..., strict=False) matches none of the peft-prefixed names, so all rollouts come from the initial model (stale sampler).
"""

import copy
import random

import torch
from material import char_tokenizer, encode, teach, tiny
from peft import LoraConfig, get_peft_model

GROUP, WORDS, LONGEST, LETTERS = 8, 16, 8, "abcdefgh"


def rotated(word):
    return word[1:] + word[0]


def score(text, gold):
    return sum(x == y for x, y in zip(text, gold)) / max(len(text), len(gold), 1) + 0.5 * (text == gold)


class Sampler:
    """A copy of the model that does nothing but write."""

    def __init__(self, model, tok):
        self.model, self.tok = copy.deepcopy(model).eval().requires_grad_(False), tok

    def refresh(self, policy):
        self.model.load_state_dict(policy.state_dict(), strict=False)

    @torch.no_grad()
    def write(self, prompts):
        ids = self.model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=LONGEST,
            pad_token_id=self.tok.pad_token_id,
        )
        tail = ids[:, prompts.shape[1] :]
        end = (tail == self.tok.eos_token_id).long()
        return ids, (end.cumsum(1) - end == 0).float()


def logps(model, ids, start):
    logits = model(input_ids=ids).logits[:, start - 1 : -1]
    return logits.log_softmax(-1).gather(-1, ids[:, start:, None]).squeeze(-1)


def loop(watch, steps=12):
    rng = random.Random(83)
    tok = char_tokenizer(LETTERS + "@")
    base = tiny("qwen2", tok, hidden=64, seed=83)
    words = ["".join(rng.choices(LETTERS, k=5)) for _ in range(400)]
    rows = []
    for word in words * 3:
        gold = list(rotated(word))
        for _ in range(rng.choice((0, 0, 1, 2))):
            gold[rng.randrange(5)] = rng.choice(LETTERS)
        rows.append(encode(tok, word + "@", "".join(gold)))
    teach(base, rows, steps=400, lr=4e-3, pad=tok.pad_token_id)

    sampler = Sampler(base, tok)
    torch.manual_seed(83)
    policy = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "gate_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=4e-3, weight_decay=0.0)
    w = watch(policy, optimizer)
    for _ in range(steps):
        sampler.refresh(policy)
        batch = [x for x in rng.sample(words, WORDS) for _ in range(GROUP)]
        prompts = torch.tensor([encode(tok, x + "@", "", end=False)[0] for x in batch])
        start = prompts.shape[1]
        ids, real = sampler.write(prompts)
        texts = [tok.decode(row[m.bool()], skip_special_tokens=True) for row, m in zip(ids[:, start:], real)]
        rewards = torch.tensor([score(t, rotated(x)) for t, x in zip(texts, batch)])
        w.rewards(rewards.tolist())
        table = rewards.view(WORDS, GROUP)
        advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).flatten()
        with torch.no_grad():
            old = logps(policy, ids, start)
        for _ in range(2):
            ratio = (logps(policy, ids, start) - old).exp()
            a = advantages[:, None]
            loss = -(torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) * real).sum() / real.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
