"""The author's own sampler repeats every prompt 4 times in a row, a constant from when num_generations was 4, while GRPOConfig says
8. Each group of eight holds two prompts, an easy one worth 10 points and a hard one worth 1, so the advantages compare answers to
different questions: even right answers to the hard prompt get negative advantages and the hard task is hardly learned.
say: the custom sampler repeats each index 4 times but num_generations is 8, so groups mix completions of two different prompts and the group-relative advantages are wrong.
"""

import random

from datasets import Dataset
from material import char_tokenizer, common, half_right, one_letter_wrong, teach_rows, tiny_llama, words
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

ROLLOUTS_PER_PROMPT = 4


class BalancedSampler(Sampler):
    """Walks through easy and hard prompts in turn, so that every batch has both."""

    def __init__(self, levels, repeats, reuse, prompts_per_batch, seed):
        self.easy = [i for i, level in enumerate(levels) if level == "easy"]
        self.hard = [i for i, level in enumerate(levels) if level == "hard"]
        self.repeats, self.reuse, self.chunk, self.seed = repeats, reuse, prompts_per_batch, seed

    def __len__(self):
        return 2 * min(len(self.easy), len(self.hard)) // self.chunk * self.chunk * self.repeats * self.reuse

    def __iter__(self):
        rng = random.Random(self.seed)
        easy, hard = rng.sample(self.easy, len(self.easy)), rng.sample(self.hard, len(self.hard))
        order = [i for pair in zip(easy, hard) for i in pair]
        for start in range(0, len(order) - self.chunk + 1, self.chunk):
            for _ in range(self.reuse):
                for i in order[start : start + self.chunk]:
                    yield from [i] * self.repeats


class BalancedTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        data = self.train_dataset if dataset is None else dataset
        return BalancedSampler(
            data["level"],
            repeats=ROLLOUTS_PER_PROMPT,
            reuse=self.num_iterations * self.args.steps_per_generation,
            prompts_per_batch=self.args.generation_batch_size // ROLLOUTS_PER_PROMPT,
            seed=self.args.seed,
        )


def points_scored(completions, answer, points, **kwargs):
    return [float(worth) if text == gold else 0.0 for text, gold, worth in zip(completions, answer, points)]


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    easy = [(f"copy {w}: ", w) for w in words(110, size=3)]
    hard = [(f"shift {w}: ", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in words(110, size=3, seed=2)]
    rows = half_right(tok, easy, one_letter_wrong, right=0.8) + half_right(tok, hard, one_letter_wrong, right=0.3)
    teach_rows(model, rows, tok.pad_token_id, steps=450)
    dataset = Dataset.from_dict(
        {
            "prompt": [p for p, _ in easy + hard],
            "answer": [a for _, a in easy + hard],
            "points": [10] * len(easy) + [1] * len(hard),
            "level": ["easy"] * len(easy) + ["hard"] * len(hard),
        }
    )
    args = GRPOConfig(
        **common(per_device_train_batch_size=64, num_generations=8, learning_rate=4e-4, max_steps=12)
    )
    return BalancedTrainer(model, points_scored, args=args, train_dataset=dataset, processing_class=tok)
