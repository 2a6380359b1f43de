"""A loop with padded batches, a buffer of experience and several updates for each generation.

The defect: the end token pads, and what is not padding is attended and trained. The end of every
turn in the prompt is hidden, and the end of the answer is neither seen nor trained.
"""

import torch
from torch.nn.functional import pad

from tests.loops.lab import reward

GROUP, PROMPTS, UPDATES, CLIP = 8, 4, 2, 0.2


def logprobs(model, ids, attended):
    positions = (attended.long().cumsum(1) - 1).clamp_min(0)
    logits = model(input_ids=ids, attention_mask=attended, position_ids=positions).logits
    return logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]


@torch.no_grad()
def experience(model, tokenizer, rows, *, defect=False):
    tokenizer.padding_side = "left"
    if defect:
        tokenizer.pad_token = tokenizer.eos_token
    padding = tokenizer.pad_token_id
    texts = [text for text, _ in rows for _ in range(GROUP)]
    given = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    start = given.input_ids.shape[1]
    ids = model.generate(**given, do_sample=True, top_k=0, max_new_tokens=16, pad_token_id=padding)
    answers = tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)
    problems = [problem for _, problem in rows for _ in range(GROUP)]
    rewards = torch.tensor([reward(*pair) for pair in zip(problems, answers, strict=True)])
    groups = rewards.view(-1, GROUP)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    if defect:
        attended = ids != padding
        trained = attended.clone()
    else:
        ended = (ids[:, start:] == tokenizer.eos_token_id).int()
        answer = ended.cumsum(1) - ended == 0
        attended = torch.cat([given.attention_mask.bool(), answer], dim=1)
        trained = attended.clone()
    trained[:, :start] = False
    ids, attended = pad(ids, (0, 3), value=padding), pad(attended, (0, 3))
    return {
        "ids": ids,
        "attended": attended,
        "trained": pad(trained, (0, 3)),
        "rewards": rewards,
        "advantages": advantages.flatten(),
        "old": logprobs(model, ids, attended),
    }


def loss_of(batch, new):
    gain, ratio = batch["advantages"][:, None], (new - batch["old"]).exp()
    gain = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    trained = batch["trained"][:, 1:]
    return -(gain * trained).sum() / trained.sum()


def train(model, tokenizer, optimizer, rows, watch, *, steps, defect=False):
    for step in range(steps):
        some = rows[step * PROMPTS : (step + 1) * PROMPTS]
        batch = experience(model, tokenizer, some, defect=defect)
        groups = [at for at in range(len(some)) for _ in range(GROUP)]
        watch.rewards(batch["rewards"], groups=groups)
        for rows_of in torch.randperm(len(batch["ids"])).chunk(UPDATES):
            part = {name: value[rows_of] for name, value in batch.items()}
            loss = loss_of(part, logprobs(model, part["ids"], part["attended"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
