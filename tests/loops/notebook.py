"""A loop as it stands in a notebook: one prompt at a time, `generate`, a ratio and a clip.

The defect: the mask is made for tokens and used on log-probs, which begin one token later. The
first token of every completion is never trained.
"""

import torch
from torch.nn.functional import pad

from tests.loops.lab import reward

GROUP, PROMPTS, CLIP = 8, 4, 0.2


def token_logprobs(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    return logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]


def experience(model, tokenizer, text, problem, *, defect=False):
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    start = prompt.shape[1]
    ids = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        top_k=0,
        num_return_sequences=GROUP,
        max_new_tokens=16,
    )
    answers = tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)
    rewards = torch.tensor([reward(problem, answer) for answer in answers])
    ended = (ids[:, start:] == tokenizer.eos_token_id).int()
    kept = ended.cumsum(1) - ended == 0
    mask = torch.cat([torch.zeros_like(prompt).expand(GROUP, -1).bool(), kept], dim=1)
    # Log-prob t is that of token t + 1; a mask cut at the wrong end begins one too late.
    used = mask[:, 1:] & mask[:, :-1] if defect else mask[:, 1:]
    with torch.no_grad():
        old = token_logprobs(model, ids)
    return {
        "ids": ids,
        "trained": pad(used, (1, 0)),
        "rewards": rewards,
        "parts": {"accuracy": rewards},
        "advantages": (rewards - rewards.mean()) / (rewards.std() + 1e-4),
        "old": old,
    }


def loss_of(batch, new):
    gain, ratio = batch["advantages"][:, None], (new - batch["old"]).exp()
    gain = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    used = batch["trained"][:, 1:]
    return -((gain * used).sum(1) / used.sum(1)).mean() / PROMPTS


def train(model, tokenizer, optimizer, rows, watch, *, steps, defect=False):
    for step in range(steps):
        optimizer.zero_grad()
        for text, problem in rows[step * PROMPTS : (step + 1) * PROMPTS]:
            batch = experience(model, tokenizer, text, problem, defect=defect)
            watch.rewards(batch["rewards"], parts=batch["parts"])
            loss_of(batch, token_logprobs(model, batch["ids"])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
