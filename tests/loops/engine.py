"""A loop around a bare model and an engine: prompts are read once, sampled from in parallel, and
rendered with a mask; the model computes the loss of given targets itself.

The defect: the rendered mask is not applied, so the prompt and the padding are trained as well.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from tests.loops.lab import reward

SAMPLES, PROMPTS, IGNORED = 8, 4, -1


class Cache:
    """Keys and values of some rows."""

    def __init__(self, inner=None):
        self.inner = inner or DynamicCache()

    def get_pos(self):
        return self.inner.get_seq_length()

    def spread_over(self, rows):
        self.inner.batch_repeat_interleave(rows)
        return self


class Bare(nn.Module):
    """A model that knows no masks: ids in; logits out, or a loss."""

    def __init__(self, causal):
        super().__init__()
        self.transformer, self.lm_head = causal.model, causal.lm_head

    def forward(self, idx, targets=None, kv_cache=None, loss_reduction="mean"):
        cache = None if kv_cache is None else kv_cache.inner
        hidden = self.transformer(
            input_ids=idx, past_key_values=cache, use_cache=cache is not None
        ).last_hidden_state
        logits = self.lm_head(hidden).float()
        if targets is None:
            return logits
        flat = logits.flatten(0, 1), targets.flatten()
        return cross_entropy(*flat, ignore_index=IGNORED, reduction=loss_reduction)


class Engine:
    """Samples."""

    def __init__(self, model, end):
        self.model, self.end = model, end

    @torch.inference_mode()
    def sample(self, prompt, count, most=16):
        """Rows of the prompt and what was sampled, each with its mask."""
        cache = Cache()
        logits = self.model(torch.tensor([prompt]), kv_cache=cache)[:, -1].expand(count, -1)
        cache.spread_over(count)
        rows, masks = (
            [list(prompt) for _ in range(count)],
            [[0] * len(prompt) for _ in range(count)],
        )
        done = [False] * count
        for _ in range(most):
            tokens = torch.multinomial(logits.softmax(-1), 1)
            for row, token in enumerate(tokens[:, 0].tolist()):
                if not done[row]:
                    rows[row].append(token)
                    masks[row].append(1)
                    done[row] = token == self.end
            if all(done):
                break
            logits = self.model(tokens, kv_cache=cache)[:, -1]
        return rows, masks


def experience(model, tokenizer, text, problem, *, defect=False):
    engine = Engine(model, tokenizer.eos_token_id)
    prompt = tokenizer(text, add_special_tokens=False).input_ids
    sampled, masks = engine.sample(prompt, SAMPLES)
    answers = [tokenizer.decode(one[len(prompt) : -1]) for one in sampled]
    rewards = torch.tensor([reward(problem, answer) for answer in answers])
    longest = max(map(len, sampled))
    ids = torch.tensor([one + [engine.end] * (longest - len(one)) for one in sampled])
    mask = torch.tensor([one + [0] * (longest - len(one)) for one in masks]) == 1
    trained = torch.ones_like(mask).index_fill(1, torch.tensor([0]), False) if defect else mask
    advantages = rewards - rewards.mean()
    return {"ids": ids, "trained": trained, "rewards": rewards, "advantages": advantages}


def token_logprobs(model, batch):
    ids = batch["ids"]
    inputs, targets = ids[:, :-1], ids[:, 1:].clone()
    targets[~batch["trained"][:, 1:]] = IGNORED
    return -model(inputs, targets, loss_reduction="none").view_as(inputs)


def loss_of(batch, logp):
    used = batch["trained"][:, 1:].sum().clamp_min(1)
    return -(logp * batch["advantages"][:, None]).sum() / used / PROMPTS


def train(model, tokenizer, optimizer, rows, watch, *, steps, defect=False):
    for step in range(steps):
        for text, problem in rows[step * PROMPTS : (step + 1) * PROMPTS]:
            batch = experience(model, tokenizer, text, problem, defect=defect)
            watch.rewards(batch["rewards"].tolist())
            loss_of(batch, token_logprobs(model, batch)).backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
