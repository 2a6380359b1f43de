"""Plain PyTorch PPO: a transformer with a value head, GAE, and two epochs of mini-batches; no groups at all.

Particular: every prompt is sampled once, so nothing is compared within a group; advantages come from a learned value and
are whitened over the batch; the KL to a frozen copy is paid token by token inside the reward, the task's reward only at
the last token; the loss holds a value term of another scale; prompts of mixed length are padded on the left; the value
head has a rate of its own.
"""

import copy
import random

import torch
from material import char_tokenizer, encode, teach, tiny
from torch import nn

ROUNDS, BATCH, LENGTH, EPOCHS, PARTS = 6, 128, 6, 2, 1


class WithValue(nn.Module):
    def __init__(self, lm, hidden):
        super().__init__()
        self.lm = lm
        self.value = nn.Linear(hidden, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, ids, mask):
        position = (mask.cumsum(1) - 1).clamp(min=0)
        out = self.lm(input_ids=ids, attention_mask=mask, position_ids=position, output_hidden_states=True)
        return out.logits.float(), self.value(out.hidden_states[-1].detach()).squeeze(-1)


@torch.no_grad()
def sample(model, ids, mask, eos, pad):
    done = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(LENGTH):
        logits, _ = model(ids, mask)
        token = torch.multinomial(torch.softmax(logits[:, -1], -1), 1).squeeze(1)
        token = torch.where(done, torch.full_like(token, pad), token)
        ids = torch.cat([ids, token.unsqueeze(1)], 1)
        mask = torch.cat([mask, (~done).long().unsqueeze(1)], 1)
        done = done | (token == eos)
    return ids, mask


def evaluate(model, ids, mask, start):
    logits, values = model(ids, mask)
    logp = torch.log_softmax(logits[:, start - 1 : -1], -1)
    return logp.gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1), values[:, start - 1 : -1]


def loop(watch):
    rng = random.Random(6)
    tok = char_tokenizer("abcdefgh>")
    lm = tiny("qwen3", tok, hidden=64, layers=2, initializer_range=0.05, tie_word_embeddings=False)
    lessons = []
    for _ in range(3000):
        word = "".join(rng.choice("abcdefgh") for _ in range(rng.randint(2, 4)))
        said = "".join(c if rng.random() < 0.75 else rng.choice("abcdefgh") for c in reversed(word))
        lessons.append(encode(tok, word + ">", said))
    teach(lm, lessons, steps=350, lr=3e-3, pad=tok.pad_token_id, batch=48)

    torch.manual_seed(1)
    reference = copy.deepcopy(lm).requires_grad_(False)
    model = WithValue(lm, 64)
    optimizer = torch.optim.AdamW(
        [{"params": model.lm.parameters(), "lr": 4e-4}, {"params": model.value.parameters(), "lr": 2e-2}],
        weight_decay=0.0,
    )
    w = watch(model, optimizer)
    for _ in range(ROUNDS):
        words = ["".join(rng.choice("abcdefgh") for _ in range(rng.randint(2, 4))) for _ in range(BATCH)]
        heads = tok(text=[word + ">" for word in words])["input_ids"]
        start = max(map(len, heads))
        ids = torch.tensor([[tok.pad_token_id] * (start - len(h)) + h for h in heads])
        mask = torch.tensor([[0] * (start - len(h)) + [1] * len(h) for h in heads])
        ids, mask = sample(model, ids, mask, tok.eos_token_id, tok.pad_token_id)
        keep = mask[:, start:].float()
        texts = tok.batch_decode(ids[:, start:], skip_special_tokens=True)
        scores = torch.tensor(
            [
                sum(a == b for a, b in zip(t, reversed(word))) / len(word) - 0.25 * abs(len(t) - len(word))
                for t, word in zip(texts, words)
            ]
        )
        w.rewards(scores.tolist())

        with torch.no_grad():
            old, values = evaluate(model, ids, mask, start)
            position = (mask.cumsum(1) - 1).clamp(min=0)
            logits = reference(input_ids=ids, attention_mask=mask, position_ids=position).logits[:, start - 1 : -1]
            ref = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)
            paid = -0.02 * (old - ref) * keep
            paid[torch.arange(BATCH), keep.sum(1).long() - 1] += scores
            gain, running = torch.zeros_like(paid), torch.zeros(BATCH)
            for t in reversed(range(LENGTH)):
                following = values[:, t + 1] * keep[:, t + 1] if t + 1 < LENGTH else torch.zeros(BATCH)
                running = (paid[:, t] + following - values[:, t] + 0.95 * running) * keep[:, t]
                gain[:, t] = running
            target = gain + values
            mean = (gain * keep).sum() / keep.sum()
            std = (((gain - mean) ** 2 * keep).sum() / keep.sum()).sqrt()
            gain = (gain - mean) / (std + 1e-6)

        for _ in range(EPOCHS):
            for part in torch.randperm(BATCH).chunk(PARTS):
                new, value = evaluate(model, ids[part], mask[part], start)
                k, g = keep[part], gain[part]
                ratio = torch.exp(new - old[part])
                policy = -(torch.min(ratio * g, ratio.clamp(0.8, 1.2) * g) * k).sum() / k.sum()
                fit = ((value - target[part]) ** 2 * k).sum() / k.sum()
                optimizer.zero_grad()
                (policy + 0.5 * fit).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()


if __name__ == "__main__":

    class Print:
        def rewards(self, values):
            print(sum(values) / len(values))

    loop(lambda model, optimizer: Print())
