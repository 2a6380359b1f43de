"""The reward is the rank within the group, so its mean is zero in every batch for ever.

Particular: the trained reward is a centred rank (ties share the mean rank); the raw score is only watched, as a second
reward of weight 0; Dr. GRPO without scaling; OLMo-2 (norms after the blocks); completions all of about one length; 16 a
group; a callback keeps the best raw score.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GROUP = 16
LETTERS = "abcdefgh"


def raw(text, avoid):
    """Different letters used, without the one to avoid and without going on for too long."""
    return len(set(text) & set(LETTERS) - {avoid}) - 2 * text.count(avoid) - 2 * max(0, len(text) - 8)


def raw_score(completions, avoid, **kwargs):
    return [float(raw(c, a)) for c, a in zip(completions, avoid)]


def centred_rank(completions, avoid, **kwargs):
    """-1 for the worst of a group to 1 for the best, whatever the distances between them are."""
    scores = raw_score(completions, avoid)
    out = []
    for start in range(0, len(scores), GROUP):
        part = scores[start : start + GROUP]
        for s in part:
            below, same = sum(o < s for o in part), sum(o == s for o in part)
            out.append(2 * (below + (same - 1) / 2) / (GROUP - 1) - 1)
    return out


class Best(TrainerCallback):
    best = float("-inf")

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.best = max(self.best, (logs or {}).get("rewards/raw_score/mean", self.best))


def build():
    rng = random.Random(12)
    tok = char_tokenizer(LETTERS + "-:>")
    model = tiny("olmo2", tok, hidden=64, layers=2, initializer_range=0.05)
    prompts = [f"{a}-{x}:" for a in "ab" for x in LETTERS]
    lessons = []
    for _ in range(3000):
        p = rng.choice(prompts)
        letters = [c for c in LETTERS if c != p[2] or rng.random() < 0.6]
        said = "".join(rng.choice(letters) for _ in range(rng.choice([6, 7, 7, 7, 8])))
        lessons.append(encode(tok, p, said))
    teach(model, lessons, steps=200, lr=3e-3, pad=tok.pad_token_id, batch=48)

    rows = prompts
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=256,
        num_generations=GROUP,
        max_completion_length=10,
        max_steps=12,
        learning_rate=2e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        loss_type="dr_grpo",
        scale_rewards="none",
        reward_weights=[1.0, 0.0],
        seed=21,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[centred_rank, raw_score],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": rows, "avoid": [p[2] for p in rows]}),
        callbacks=[Best()],
    )


if __name__ == "__main__":
    build().train()
