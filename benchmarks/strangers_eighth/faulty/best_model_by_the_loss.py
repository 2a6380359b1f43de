"""load_best_model_at_end with metric_for_best_model="eval_loss" (taken over from supervised training). The loss of this trainer is no
measure of quality: with advantages centred in each group it is about zero at every step, and the KL term in it is smallest for the
policy that has learnt least. At the end the run goes back to one of the first checkpoints and throws the learning away.
say: The best checkpoint is chosen by eval_loss, which says nothing about the quality of the policy here (eval_reward was needed), so the model loaded at the end is not the best one.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from trl import GRPOConfig, GRPOTrainer


def roman(n):
    out = ""
    for value, sign in ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while n >= value:
            out, n = out + sign, n - value
    return out


def roman_right(completions, answer, **kwargs):
    """1 if right, otherwise 0.3 times the share of right signs."""
    scores = []
    for text, gold in zip(completions, answer):
        share = sum(x == y for x, y in zip(text, gold)) / max(len(text), len(gold))
        scores.append(1.0 if text == gold else 0.3 * share)
    return scores


def wrong(rng, answer):
    i = rng.randrange(len(answer) + 1)
    return answer[:i] + rng.choice("IVXL") + answer[i:] if rng.random() < 0.6 or len(answer) < 2 else answer[: i - 1] + answer[i:]


def build():
    tok = char_tokenizer("0123456789IVXL=>", padding_side="left")
    model = tiny("qwen2", tok, hidden=64)
    pairs = [(f"{n:02d}{sign}", roman(n)) for n in range(1, 60) for sign in "=>"]
    random.Random(8).shuffle(pairs)
    teach(model, half_right(tok, pairs, wrong, right=0.45, copies=12), steps=320, lr=3e-3, pad=tok.pad_token_id)
    train, test = pairs[:94], pairs[94:]

    def dataset(part):
        return Dataset.from_dict({"prompt": [p for p, _ in part], "answer": [a for _, a in part]})

    settings = base_args(
        beta=0.05,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=48,
        num_generations=8,
        num_generations_eval=2,
        max_completion_length=9,
        learning_rate=6e-4,
        lr_scheduler_type="constant",
        max_steps=12,
        seed=4,
    )
    settings.update(
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        save_only_model=True,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
    )
    return GRPOTrainer(
        on_disk(model, tok),
        roman_right,
        args=GRPOConfig(**settings),
        train_dataset=dataset(train),
        eval_dataset=dataset(test),
        processing_class=tok,
    )
