"""DAPO-like dynamic sampling in a subclass, with a sampler of its own that prefers undecided prompts.

Particular: a generation batch in which half of the groups have no spread is drawn again with other prompts (up to three
tries, the best is kept), so a step may generate more than once; the sampler draws prompts with weights that follow
their latest pass rate; each row has a list of valid answers; partial credit for the right beginning;
Qwen2 with its biases, tied; one accumulated step from four micro-batches.
"""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

ANIMALS = "ant ape bat bear bee cat cod cow crab crow dog dove duck eel elk fox frog gnu goat hare hen".split()
GOLD = {}
for word in ANIMALS:
    GOLD.setdefault(word[0], []).append(word)


def named(completions, answers, **kwargs):
    """Any of the listed animals is right."""
    out = []
    for text, gold in zip(completions, answers):
        said = text.strip()
        out.append(1.0 if said in gold else 0.3 if said[:1] == gold[0][0] else 0.0)
    return out


class Undecided(Sampler):
    """Draws prompts by weight, every one repeated for its group, and the whole batch again for each pass over it."""

    def __init__(self, size, group, prompts, passes, batches, seed):
        self.size, self.group, self.prompts, self.passes, self.batches = size, group, prompts, passes, batches
        self.weights = torch.ones(size)
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.batches * self.prompts * self.group * self.passes

    def draw(self, n):
        return torch.multinomial(self.weights, n, replacement=False, generator=self.generator).tolist()

    def __iter__(self):
        for _ in range(self.batches):
            chosen = self.draw(self.prompts)
            for _ in range(self.passes):
                for index in chosen:
                    yield from [index] * self.group


class DynamicSampling(GRPOTrainer):
    tries = 3

    def _get_train_sampler(self, dataset=None):
        dataset = dataset if dataset is not None else self.train_dataset
        prompts = self.args.generation_batch_size // self.num_generations
        passes = self.num_iterations * self.args.steps_per_generation
        self.undecided = Undecided(len(dataset), self.num_generations, prompts, passes, 64, self.args.seed)
        return self.undecided

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.model.training:
            for start in range(0, len(inputs), self.num_generations):
                mean = rewards[start : start + self.num_generations, 0].mean().item()
                self.undecided.weights[inputs[start]["row"]] = 0.1 + mean * (1 - mean) * 4
        return rewards

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        best, best_alive = None, -1.0
        for attempt in range(self.tries):
            if attempt:
                picks = self.undecided.draw(len(inputs) // self.num_generations)
                inputs = [dict(self.train_dataset[i]) for i in picks for _ in range(self.num_generations)]
            output = super()._generate_and_score_completions(inputs)
            spread = output["advantages"].view(-1, self.num_generations).abs().amax(1) > 0
            alive = spread.float().mean().item()
            if alive > best_alive:
                best, best_alive = output, alive
            if alive > 0.5:
                break
        self._metrics["train"]["sampling/tries"].append(attempt + 1)
        return best


def build():
    rng = random.Random(2)
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz :")
    model = tiny("qwen2", tok, hidden=64, layers=2, initializer_range=0.05)
    openings = ["animal with {}:", "name a beast {}:", "{} animal:", "zoo {}:"]
    pairs = [(o.format(letter), letter) for o in openings for letter in GOLD]
    lessons = []
    for _ in range(2500):
        prompt, letter = rng.choice(pairs)
        roll = rng.random()
        said = rng.choice(GOLD[letter]) if roll < 0.35 else rng.choice(ANIMALS)
        if roll > 0.7:
            said = letter + said[1:]
        lessons.append(encode(tok, prompt, said))
    teach(model, lessons, steps=220, lr=3e-3, pad=tok.pad_token_id)

    rows = [{"prompt": p, "answers": GOLD[letter], "row": i} for i, (p, letter) in enumerate(pairs)]
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=8,
        max_steps=10,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        epsilon_high=0.28,
        seed=23,
    )
    return DynamicSampling(
        model=model, processing_class=tok, reward_funcs=named, args=args, train_dataset=Dataset.from_list(rows)
    )


if __name__ == "__main__":
    build().train()
