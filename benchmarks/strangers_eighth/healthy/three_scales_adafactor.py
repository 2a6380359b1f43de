"""Three reward functions on very different scales (minus the absolute error up to -99, a share in percent, and a small penalty
for leading zeros), each normalised in its group before the weighted sum (multi_objective_aggregation). GPT-2 with dropout in
its config (switched off by disable_dropout), groups of 3, Adafactor with an own LambdaLR that rises over two steps and then
falls as 1/sqrt, handed over as `optimizers`."""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, set_seed, teach
from transformers import Adafactor, GPT2Config, GPT2LMHeadModel
from trl import GRPOConfig, GRPOTrainer


def number(text):
    return int(text) if text.isdigit() and len(text) <= 4 else None


def minus_error(completions, answer, **kwargs):
    """Minus the distance to the right number, at worst -99."""
    out = []
    for text, gold in zip(completions, answer):
        said = number(text)
        out.append(-99.0 if said is None else -float(min(99, abs(said - int(gold)))))
    return out


def percent_of_digits(completions, answer, **kwargs):
    """How many percent of the digits stand at the right place."""
    return [100.0 * sum(x == y for x, y in zip(text, gold)) / max(len(text), len(gold)) for text, gold in zip(completions, answer)]


def no_leading_zero(completions, **kwargs):
    return [-0.01 if len(text) > 1 and text.startswith("0") else 0.0 for text in completions]


def wrong(rng, answer):
    return str(max(0, int(answer) + rng.choice([-11, -10, -2, -1, 1, 2, 10])))


def schedule(step):
    return (step + 1) / 2 if step < 2 else (2 / (step + 1)) ** 0.5


def build():
    tok = char_tokenizer("0123456789+=", padding_side="left")
    set_seed(2)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tok), n_positions=64, n_embd=64, n_layer=2, n_head=4,
            bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
        )
    )
    pairs = [(f"{a}+{b}=", str(a + b)) for a in range(10, 30) for b in range(1, 10)]
    teach(model, half_right(tok, pairs, wrong, right=0.6), steps=320, lr=3e-3, pad=tok.pad_token_id)
    random.Random(7).shuffle(pairs)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=48,
            num_generations=3,
            disable_dropout=True,
            multi_objective_aggregation="normalize_then_sum",
            reward_weights=[0.5, 1.0, 0.1],
            max_completion_length=6,
            loss_type="bnpo",
            max_steps=10,
            seed=3,
        )
    )
    optimizer = Adafactor(model.parameters(), lr=4e-4, scale_parameter=False, relative_step=False, warmup_init=False)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    return GRPOTrainer(
        model,
        [minus_error, percent_of_digits, no_leading_zero],
        args=args,
        train_dataset=dataset,
        processing_class=tok,
        optimizers=(optimizer, scheduler),
    )
