"""The reference is meant to follow the policy very slowly. The mix-up weight is understood as the share of the old reference that is kept, but it is the share of the policy: with 0.99 and a sync at
every step the reference is the policy of one step ago. The KL term compares the policy with itself and is practically zero, so
beta=0.2 holds nothing back, however far the policy drifts from the checkpoint.
say: ref_model_mixup_alpha is the weight of the policy, not of the old reference: with 0.99 and a sync at each step the reference is just the current policy, the KL stays about zero and the anchor is gone.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from trl import GRPOConfig, GRPOTrainer

SYLLABLES = ["ba", "de", "ki", "lo", "mu", "na", "po", "ri", "su", "ta"]


def rhymed(word):
    """The word twice, with a changed beginning."""
    return word + " " + "m" + word[1:]


def rhyme(completions, verse, **kwargs):
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, verse)]


def tidy(completions, **kwargs):
    """A single blank, and none at the ends."""
    return [0.2 if text.count(" ") == 1 and text.strip() == text else 0.0 for text in completions]


def clumsy(rng, answer):
    i = rng.randrange(len(answer))
    return answer[:i] + rng.choice("bdklmnprst ") + answer[i + 1 :]


def build():
    tok = char_tokenizer("abdeiklmnoprstu ~", padding_side="left")
    model = tiny("phi3", tok, hidden=64, seed=44)
    rng = random.Random(44)
    words = ["".join(rng.choices(SYLLABLES, k=2)) for _ in range(100)]
    pairs = [(w + "~", rhymed(w)) for w in words]
    teach(model, half_right(tok, pairs, clumsy, right=0.5, copies=12), steps=350, lr=4e-3, pad=tok.pad_token_id)
    args = GRPOConfig(
        **base_args(
            beta=0.2,
            sync_ref_model=True,
            ref_model_sync_steps=1,
            ref_model_mixup_alpha=0.99,  # 99% old reference, 1% policy
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=12,
            learning_rate=8e-4,
            lr_scheduler_type="constant",
            max_steps=12,
            seed=44,
        )
    )
    return GRPOTrainer(
        on_disk(model, tok),
        [rhyme, tidy],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [p for p, _ in pairs], "verse": [v for _, v in pairs]}),
        processing_class=tok,
    )
