"""LUSPO (sequence-level ratios) on a mixture of experts: sort the digits.

Particular: Qwen3-MoE with the router's load-balancing loss in the total (coefficient from the
model's config); num_iterations=2, so every generation batch is used for two updates; sequence-level importance
sampling with GSPO's narrow clipping; a sum-over-tokens loss, hence large loss values and a small rate; repeated digits
in the prompts.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer


def position_accuracy(completions, answer, **kwargs):
    scores = []
    for text, gold in zip(completions, answer):
        same = sum(x == y for x, y in zip(text, gold))
        scores.append(same / max(len(gold), len(text), 1))
    return scores


def exact(completions, answer, **kwargs):
    return [float(text == gold) for text, gold in zip(completions, answer)]


def build():
    rng = random.Random(2)
    tok = char_tokenizer("0123456789>")
    model = tiny("qwen3_moe", tok, hidden=48)

    def digits():
        return "".join(rng.choice("0123456789") for _ in range(rng.choice([3, 4])))

    lessons = []
    for _ in range(4000):
        d = digits()
        said = sorted(d)
        if rng.random() < 0.5:
            i = rng.randrange(len(said) - 1)
            said[i], said[i + 1] = said[i + 1], said[i]
        lessons.append(encode(tok, d + ">", "".join(said)))
    teach(model, lessons, steps=420, lr=5e-3, pad=tok.pad_token_id, batch=48)

    tasks = [digits() for _ in range(60)]
    data = Dataset.from_dict(
        {"prompt": [d + ">" for d in tasks], "answer": ["".join(sorted(d)) for d in tasks]}
    )
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        num_generations=8,
        num_iterations=2,
        max_completion_length=8,
        max_steps=12,
        learning_rate=4e-4,
        loss_type="luspo",
        importance_sampling_level="sequence",
        epsilon=2e-2,
        epsilon_high=3e-2,
        reward_weights=[0.7, 0.3],
        seed=4,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[position_accuracy, exact],
        args=args,
        train_dataset=data,
    )


if __name__ == "__main__":
    build().train()
