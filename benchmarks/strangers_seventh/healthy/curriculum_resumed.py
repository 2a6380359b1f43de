"""A run that continues from its own checkpoint (train() picks up the last checkpoint of output_dir, so the first step
is number 5 and the rate is already in the middle of its schedule) on an easy-to-hard curriculum: the sampler does not
shuffle, but it repeats every prompt num_generations times in a row and every chunk for the steps that reuse it, as
TRL's own sampler does."""

import random
from itertools import permutations

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from torch.utils.data import Sampler
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer


class EasyFirst(Sampler):
    """Chunks of prompts by rising level; inside a level the order is drawn once from the seed."""

    def __init__(self, levels, chunk, group, reuse, seed):
        rng = random.Random(seed)
        order = sorted(range(len(levels)), key=lambda i: (levels[i], rng.random()))
        self.chunks = [order[i : i + chunk] for i in range(0, len(order) - chunk + 1, chunk)]
        self.group, self.reuse = group, reuse

    def __iter__(self):
        for chunk in self.chunks:
            for _ in range(self.reuse):
                for index in chunk:
                    yield from [index] * self.group

    def __len__(self):
        return sum(len(c) for c in self.chunks) * self.group * self.reuse


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        data = dataset if dataset is not None else self.train_dataset
        return EasyFirst(
            data["level"],
            chunk=self.args.generation_batch_size // self.num_generations,
            group=self.num_generations,
            reuse=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )

    def train(self, resume_from_checkpoint=None, **kwargs):
        last = resume_from_checkpoint or get_last_checkpoint(self.args.output_dir)
        return super().train(resume_from_checkpoint=last, **kwargs)


class TimeLimit(TrainerCallback):
    """The job's time slot ends after step 4: save and leave."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4:
            control.should_save = True
            control.should_training_stop = True


def sort_reward(completions, answer, **kwargs):
    """1 for the sorted word, up to 0.3 for letters at their place."""
    scores = []
    for text, gold in zip(completions, answer):
        if text == gold:
            scores.append(1.0)
        else:
            scores.append(0.3 * sum(a == b for a, b in zip(text, gold)) / len(gold))
    return scores


def words(seed=3):
    """Words of three or four letters of abcdefgh; the level is the number of pairs that stand in the wrong order."""
    rng = random.Random(seed)
    out = ["".join(p) for n in (3, 4) for p in rng.sample(list(permutations("abcdefgh", n)), 40)]
    return [(w, sum(x > y for i, x in enumerate(w) for y in w[i:])) for w in out]


def shuffled(rng, answer):
    letters = list(answer)
    while "".join(letters) == answer:
        rng.shuffle(letters)
    return "".join(letters)


def trainer(model, tok, **over):
    data = words()
    dataset = Dataset.from_dict(
        {
            "prompt": [f"sort {w}:" for w, _ in data],
            "answer": ["".join(sorted(w)) for w, _ in data],
            "level": [level for _, level in data],
        }
    )
    args = GRPOConfig(
        **base_args(
            **{
                **dict(
                    per_device_train_batch_size=16,
                    gradient_accumulation_steps=3,
                    num_generations=8,
                    max_completion_length=7,
                    learning_rate=3e-4,
                    lr_scheduler_type="cosine",
                    max_steps=12,
                    seed=11,
                ),
                **over,
            }
        )
    )
    return CurriculumTrainer(model, sort_reward, args=args, train_dataset=dataset, processing_class=tok)


def build():
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz :", padding_side="left")
    model = tiny("mistral", tok, hidden=96)
    data = words()
    rows = half_right(tok, [(f"sort {w}:", "".join(sorted(w))) for w, _ in data], shuffled, right=0.45, copies=30)
    teach(model, rows, steps=450, lr=2e-3, pad=tok.pad_token_id)

    first = trainer(model, tok)
    first.add_callback(TimeLimit())
    first.train()
    return trainer(tiny("mistral", tok, hidden=96), tok, output_dir=first.args.output_dir)
