"""First only the upper block and the head learn, later the rest: gradual unfreezing by a callback.

Particular: the optimizer holds all parameters from the start, the lower ones are frozen until step 5 (no gradients, so
no updates); StableLM with a partial rotary and QKV biases; KL to a reference that is mixed towards the policy every three
steps; a regex gate (nothing without the format) times partial credit for day and month; DAPO loss with clip-higher,
weight decay, Adam with a short memory (beta2 0.95).
"""

import random
import re

from datasets import Dataset
from material import base_args, char_tokenizer, encode, on_disk, teach, tiny
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MONTHS = "january february march april may june july august september october november december".split()
FORM = re.compile(r"<d>(\d\d)-(\d\d)</d>")


def gated_date(completions, day, month, **kwargs):
    out = []
    for text, d, m in zip(completions, day, month):
        found = FORM.fullmatch(text.strip())
        out.append(0.0 if not found else 0.2 + 0.4 * (int(found[1]) == d) + 0.4 * (int(found[2]) == m))
    return out


class Unfreeze(TrainerCallback):
    """Everything below the last block is frozen when training begins and released at `at`."""

    def __init__(self, at):
        self.at = at
        self.held = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            if "layers.1." not in name and "lm_head" not in name and not name.startswith("model.norm"):
                p.requires_grad_(False)
                self.held.append(p)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            for p in self.held:
                p.requires_grad_(True)


def build():
    rng = random.Random(31)
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789 <>/-:.")
    model = tiny("stablelm", tok, hidden=64, layers=2, initializer_range=0.05)
    dates = [(d, m) for d in range(1, 29) for m in range(1, 13)]

    def prompt(d, m):
        return f"{d}. {MONTHS[m - 1]}: "

    clean = [encode(tok, prompt(d, m), f"<d>{d:02d}-{m:02d}</d>") for d, m in dates]
    unsure = []
    for _ in range(2000):
        d, m = rng.choice(dates)
        dd = d if rng.random() < 0.6 else rng.randint(1, 28)
        mm = m if rng.random() < 0.5 else rng.randint(1, 12)
        text = f"<d>{dd:02d}-{mm:02d}</d>"
        if rng.random() < 0.35:
            text = rng.choice([f"{dd}-{mm}", f"<d>{dd}-{mm}</d>", f"<d>{dd:02d}-{mm:02d}"])
        unsure.append(encode(tok, prompt(d, m), text))
    teach(model, clean, steps=150, lr=3e-3, pad=tok.pad_token_id)
    teach(model, unsure, steps=120, lr=2e-3, pad=tok.pad_token_id)

    rows = rng.sample(dates, 96)
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=14,
        max_steps=12,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        adam_beta2=0.95,
        beta=0.02,
        sync_ref_model=True,
        ref_model_sync_steps=3,
        ref_model_mixup_alpha=0.5,
        epsilon_high=0.28,
        seed=40,
    )
    return GRPOTrainer(
        model=on_disk(model, tok),
        processing_class=tok,
        reward_funcs=gated_date,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt(d, m), "day": d, "month": m} for d, m in rows]),
        callbacks=[Unfreeze(at=5)],
    )


if __name__ == "__main__":
    build().train()
