"""The tokenizer has no padding token of its own, so the end token is used for padding, and the mask of the answer is "everything that is not the padding token". That cuts off
the padding and, with it, the real end token of each answer: the decision to stop is never reinforced nor discouraged, although in this task (say the letter just so many times) stopping
at the right place is all there is to learn. Only the letters of the answers get any gradient.
say: pad and eos are the same token and the completion mask drops every pad, so the real end-of-sequence token gets no gradient and the decision to stop is not trained.
"""

import random

import torch
from material import char_tokenizer, encode, teach, tiny

GROUP = 8


def told(task):
    return task[1] * int(task[0])


def how_right(text, task):
    gold = told(task)
    if text == gold:
        return 1.0
    return max(0.0, 0.5 - 0.1 * abs(len(text) - len(gold))) if set(text) <= {task[1]} else 0.0


def answer_mask(answers, tok):
    return (answers != tok.pad_token_id).float()


def token_logps(model, ids, width):
    out = model(input_ids=ids).logits[:, width - 1 : -1]
    return torch.gather(out.log_softmax(-1), 2, ids[:, width:].unsqueeze(-1)).squeeze(-1)


def loop(watch, steps=12):
    rng = random.Random(94)
    tok = char_tokenizer("123456789abcdef,", pad="</s>")
    model = tiny("mistral", tok, hidden=64, seed=94)
    tasks = [f"{n}{c}," for n in range(1, 8) for c in "abcdef"]
    rows = []
    for task in tasks:
        for _ in range(20):
            n = max(1, int(task[0]) + rng.choice((0, 0, 0, -2, -1, 1, 2)))
            rows.append(encode(tok, task, task[1] * n))
    teach(model, rows, steps=350, lr=4e-3, pad=tok.pad_token_id)

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    torch.manual_seed(94)
    w = watch(model, optimizer)
    for _ in range(steps):
        batch = [t for t in rng.sample(tasks, 16) for _ in range(GROUP)]
        prompts = torch.tensor([encode(tok, t, "", end=False)[0] for t in batch])
        width = prompts.shape[1]
        with torch.no_grad():
            ids = model.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=11,
                pad_token_id=tok.pad_token_id,
            )
            old = token_logps(model, ids, width)
        mask = answer_mask(ids[:, width:], tok)
        texts = [tok.decode(a, skip_special_tokens=True) for a in ids[:, width:]]
        rewards = torch.tensor([how_right(x, t) for x, t in zip(texts, batch)])
        w.rewards(rewards.tolist())
        groups = rewards.view(-1, GROUP)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        for part in torch.randperm(len(ids)).split(64):
            ratio = torch.exp(token_logps(model, ids[part], width) - old[part])
            surrogate = torch.min(ratio * advantages[part], ratio.clamp(0.8, 1.2) * advantages[part])
            loss = -(surrogate * mask[part]).sum() / mask[part].sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
