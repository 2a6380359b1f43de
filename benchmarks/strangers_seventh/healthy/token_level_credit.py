"""A subclass gives each token the advantage of the rewards that it can still change (reward to go): the intermediate
result is judged up to the semicolon, the final one everywhere, both normalised within the prompt's group; the advantages
have the shape (rows, tokens), which TRL accepts, and the loss is CISPO with its recommended upper bound of 5."""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer


class RewardToGo(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._last_rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._last_rewards

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        group = self.num_generations if self.model.training else self.num_generations_eval
        grouped = self._last_rewards.view(-1, group, 2)
        centred = grouped - grouped.mean(1, keepdim=True)
        step, final = (centred / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 2).unbind(1)
        ids = batch["completion_ids"]
        separator = self.processing_class.convert_tokens_to_ids(";")
        before = (ids == separator).cumsum(1) - (ids == separator).long() == 0  # up to the first `;`, with it
        batch["advantages"] = final.unsqueeze(1) + torch.where(before, step.unsqueeze(1), 0.0)
        return batch


def product_first(completions, product, **kwargs):
    """The intermediate result: is the product before the semicolon right?"""
    return [float(text.split(";")[0] == gold) for text, gold in zip(completions, product)]


def total(completions, answer, **kwargs):
    """The final result after the semicolon."""
    return [float(text.count(";") == 1 and text.split(";")[1] == gold) for text, gold in zip(completions, answer)]


def rows():
    out = [(f"{a}x{b}+{c}=", str(a * b), str(a * b + c)) for a in range(2, 6) for b in range(2, 6) for c in range(6)]
    random.Random(9).shuffle(out)
    return out


def build():
    tok = char_tokenizer("0123456789x+=;", padding_side="left")
    model = tiny("granite", tok, hidden=96)
    rng = random.Random(0)
    lesson = []
    for prompt, product, answer in rows():
        c = int(answer) - int(product)
        for _ in range(20):
            said = int(product) + (0 if rng.random() < 0.7 else rng.choice([-2, -1, 1, 2]))
            end = said + c + (0 if rng.random() < 0.7 else rng.choice([-1, 1]))
            lesson.append(encode(tok, prompt, f"{said};{end}"))
    teach(model, lesson, steps=500, lr=2e-3, pad=tok.pad_token_id)
    data = rows()
    args = GRPOConfig(
        **base_args(
            loss_type="cispo",
            epsilon_high=5.0,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            num_generations=8,
            max_completion_length=8,
            learning_rate=3e-4,
            max_steps=12,
            seed=19,
        )
    )
    dataset = Dataset.from_dict({"prompt": [p for p, _, _ in data], "product": [m for _, m, _ in data], "answer": [a for _, _, a in data]})
    return RewardToGo(model, [product_first, total], args=args, train_dataset=dataset, processing_class=tok)
