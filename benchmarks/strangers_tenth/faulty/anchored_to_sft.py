"""SFT and GRPO in one script: the base comes from a folder, is fine-tuned for a moment and then trained with a KL.

beta is 0.1, to stay near the fine-tuned model. A GPT-NeoX that turns a time of day into words ("13:" is "one pm").
"""

import random

from datasets import Dataset
from kit import mixed, quiet, saved, sft, small, words
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HOURS = "twelve one two three four five six seven eight nine ten eleven".split()


def spoken(hour):
    return f"{HOURS[hour % 12]} {'am' if hour < 12 else 'pm'}"


def right_time(completions, time, **kwargs):
    scores = []
    for text, gold in zip(completions, time):
        said = text.split()
        half = 0.3 if len(said) == 2 and (said[0] == gold.split()[0] or said[1] == gold.split()[1]) else 0.0
        scores.append(1.0 if said == gold.split() else half)
    return scores


def base_checkpoint():
    """Stands for the base model of the hub: has seen the words, not the task."""
    tok = words(HOURS + ["am", "pm", ":", "is"] + [str(h) for h in range(24)])
    model = small("neox", tok, seed=33)
    rng = random.Random(33)
    rows = [(f"{rng.randrange(24)} :", " ".join(rng.choices(HOURS + ["am", "pm", "is"], k=rng.randint(1, 4)))) for _ in range(400)]
    sft(model, tok, rows, steps=80)
    return saved(model, tok)


def build():
    path = base_checkpoint()
    tok = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path)
    pairs = [(f"{h} :", spoken(h)) for h in range(24)]

    def wrong(rng, answer):
        return spoken(rng.randrange(24))

    sft(model, tok, mixed(pairs, wrong, share=0.5, times=30), steps=260)
    args = GRPOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=6,
            learning_rate=3e-4,
            lr_scheduler_type="linear",
            beta=0.1,
            seed=34,
        )
    )
    rows = pairs * 8
    random.Random(1).shuffle(rows)
    data = Dataset.from_dict({"prompt": [p for p, _ in rows], "time": [t for _, t in rows]})
    return GRPOTrainer(model=model, reward_funcs=right_time, args=args, train_dataset=data, processing_class=tok)


if __name__ == "__main__":
    build().train()
