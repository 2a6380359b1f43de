"""Two tasks in one dataset, each with its own reward function that returns None for the rows of the other task (one of
them asynchronous, as a remote verifier would be), plus a small brevity term for all rows: in every row exactly one of
the two verifiers speaks, so the sum of the non-None ones is what the author wants, and groups never mix tasks."""

import asyncio
import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer


def add_reward(completions, task, answer, **kwargs):
    """Sums: 1 or 0, and None for the other task."""
    out = []
    for text, kind, gold in zip(completions, task, answer):
        if kind != "add":
            out.append(None)
            continue
        try:
            out.append(float(int(text) == int(gold)))
        except ValueError:  # not a number
            out.append(0.0)
    return out


async def reverse_reward(completions, task, answer, log_metric=None, **kwargs):
    """Reversed words: checked by a (pretended) remote service, None for the other task."""
    await asyncio.sleep(0)
    mine = [i for i, kind in enumerate(task) if kind == "reverse"]
    out = [None] * len(completions)
    for i in mine:
        out[i] = 1.0 if completions[i] == answer[i] else 0.0
    if log_metric is not None and mine:
        log_metric("reverse_share", len(mine) / len(completions))
    return out


def brevity(completion_ids, **kwargs):
    """-1 at twelve tokens or more, 0 for up to four."""
    return [-min(1.0, max(0, len(ids) - 4) / 8) for ids in completion_ids]


def rows():
    rng = random.Random(5)
    out = [("add", f"add {a} {b} =", str(a + b)) for a in range(8) for b in range(8)]
    words = set()
    while len(words) < 64:
        words.add("".join(rng.sample("abcdefgh", 3)))
    out += [("reverse", f"reverse {w} =", w[::-1]) for w in sorted(words)]
    rng.shuffle(out)
    return out


def slip(rng, answer):
    """A plausible mistake: a sum off by one or two, a word with two letters swapped, sometimes with letters left over."""
    if answer.isdigit():
        return str(abs(int(answer) + rng.choice([-2, -1, 1, 2])))
    letters = list(answer)
    i = rng.randrange(2)
    letters[i], letters[i + 1] = letters[i + 1], letters[i]
    return "".join(letters) + "".join(rng.choices("abcdefgh", k=rng.choice([0, 0, 0, 2, 4, 7])))


def build():
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789 =", padding_side="left")
    model = tiny("gemma2", tok, hidden=96)
    data = rows()
    teach(
        model,
        half_right(tok, [(p, a) for _, p, a in data], slip, right=0.5, copies=20),
        steps=600,
        lr=2e-3,
        pad=tok.pad_token_id,
    )
    args = GRPOConfig(
        **base_args(
            loss_type="bnpo",
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=12,
            learning_rate=5e-4,
            reward_weights=[1.0, 1.0, 0.2],
            max_steps=10,
            seed=3,
        )
    )
    dataset = Dataset.from_dict({"task": [t for t, _, _ in data], "prompt": [p for _, p, _ in data], "answer": [a for _, _, a in data]})
    return GRPOTrainer(model, [add_reward, reverse_reward, brevity], args=args, train_dataset=dataset, processing_class=tok)
