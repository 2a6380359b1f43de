"""RLOO from a checkpoint directory with the KL inside the reward, a reference that follows the policy every four steps, an
evaluation on questions that are not in the training set, and a callback that fades the weight of the format term out over
the run: the total reward may therefore fall while the accuracy rises, which is what the author wants."""

import random

from datasets import Dataset
from material import base_args, encode, on_disk, teach, tiny, word_tokenizer
from transformers import TrainerCallback
from trl import RLOOConfig, RLOOTrainer

ROOMS = ["hall", "attic", "garden", "cellar", "kitchen"]
THINGS = ["key", "lamp", "book", "cup"]


DAYS = ["monday", "tuesday", "friday", "sunday"]


def stories():
    """A thing was somewhere and is now somewhere else: [(question, its room now)]."""
    out = []
    for day in DAYS:
        for thing in THINGS:
            for x in ROOMS:
                for y in ROOMS:
                    if x != y:
                        out.append((f"on {day} the {thing} was in the {x} and now it is in the {y} . where is it ?", y))
    random.Random(3).shuffle(out)
    return out


def room(completions, answer, **kwargs):
    """1 if the right room is named and no other one."""
    return [float([w for w in text.split() if w in ROOMS] == [gold]) for text, gold in zip(completions, answer)]


def full_sentence(completions, **kwargs):
    """Format: `it is in the X .`"""
    return [float(text.startswith("it is in the ") and text.endswith(" .")) for text in completions]


class FadeFormat(TrainerCallback):
    """The weight of the format term goes linearly from 0.5 to 0.1."""

    def __init__(self):
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        share = state.global_step / max(1, state.max_steps)
        self.trainer.reward_weights[1] = 0.5 - 0.4 * share


def build():
    data = stories()
    tok = word_tokenizer("on the was in and now it is . where ?".split() + ROOMS + THINGS + DAYS, padding_side="left")
    model = tiny("olmo2", tok, hidden=96)
    rng = random.Random(0)
    rows = []
    for question, right in data:
        for _ in range(6):
            said = right if rng.random() < 0.55 else rng.choice([r for r in ROOMS if r != right])
            rows.append(encode(tok, question, f"it is in the {said} ." if rng.random() < 0.7 else f"in the {said}"))
    teach(model, rows, steps=400, lr=2e-3, pad=tok.pad_token_id)
    train, test = data[:300], data[300:316]
    args = RLOOConfig(
        **base_args(
            beta=0.02,
            sync_ref_model=True,
            ref_model_sync_steps=4,
            ref_model_mixup_alpha=0.5,
            normalize_advantages=True,
            reward_weights=[1.0, 0.5],
            per_device_train_batch_size=32,
            per_device_eval_batch_size=16,
            gradient_accumulation_steps=2,
            num_generations=4,
            num_generations_eval=2,
            max_completion_length=10,
            learning_rate=3e-4,
            eval_strategy="steps",
            eval_steps=5,
            max_steps=10,
            seed=17,
        )
    )

    def dataset(part):
        return Dataset.from_dict({"prompt": [q for q, _ in part], "answer": [x for _, x in part]})

    fade = FadeFormat()
    fade.trainer = RLOOTrainer(
        on_disk(model, tok),
        [room, full_sentence],
        args=args,
        train_dataset=dataset(train),
        eval_dataset=dataset(test),
        processing_class=tok,
        callbacks=[fade],
    )
    return fade.trainer
