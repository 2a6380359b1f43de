"""The subclass wants the leave-one-out baseline of RLOO in this trainer and computes it in `_compute_loss` from rewards that travel with
the batch, by `view(-1, num_generations)`. But between scoring and the loss the trainer shuffles the rows of the generation batch: by
then the rows of a "group" belong to different prompts, and the advantages tell questions with high marks from questions with low
ones instead of good answers from bad ones.
say: The groups are formed after the trainer has shuffled the rows, so the baseline of each group mixes completions of different prompts.
"""

import random
import zlib

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer


class LeaveOneOutTrainer(GRPOTrainer):
    """Advantages: reward less the mean of the others in the group, in units of the batch's deviation."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        per_function = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._last_rewards = (per_function * self.reward_weights.to(per_function.device)).nansum(dim=1)
        return per_function

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["rewards"] = self._last_rewards
        return output

    def _compute_loss(self, model, inputs):
        n = self.num_generations
        grouped = inputs["rewards"].view(-1, n)
        others = (grouped.sum(dim=1, keepdim=True) - grouped) / (n - 1)
        advantages = (grouped - others) / (grouped.std() + 1e-4)
        return super()._compute_loss(model, {**inputs, "advantages": advantages.view(-1)})


def marks(prompts, completions, answer, **kwargs):
    """Like the marks of a reward model: a level of its own for every question, and on it what the answer is worth."""
    out = []
    for prompt, text, gold in zip(prompts, completions, answer):
        level = zlib.crc32(prompt.encode()) % 1000 / 125 - 4
        near = 0.0 if not text.isdigit() else max(0.0, 1 - abs(int(text) - int(gold)) / 10)
        out.append(level + (1.0 if text == gold else 0.3 * near))
    return out


def build():
    tok = char_tokenizer("0123456789*=# ", padding_side="left")
    model = tiny("qwen3", tok, hidden=64)
    rng = random.Random(5)
    easy = [(f"#{n}=", str(n)) for n in range(10, 100)]  # to be repeated
    hard = [(f"{a}*{b}=", str(a * b)) for a in range(2, 16) for b in range(2, 10)]
    rows = []
    for items, right, off in ((easy, 0.6, 9), (hard, 0.5, 9)):
        for prompt, gold in items:
            for _ in range(8):
                said = gold if rng.random() < right else str(max(1, int(gold) + rng.randint(-off, off)))
                rows.append(encode(tok, prompt, said))
    teach(model, rows, steps=450, lr=3e-3, pad=tok.pad_token_id)
    items = easy + hard
    rng.shuffle(items)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in items], "answer": [a for _, a in items]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=5,
            learning_rate=4e-4,
            max_steps=10,
            seed=7,
        )
    )
    return LeaveOneOutTrainer(model, marks, args=args, train_dataset=dataset, processing_class=tok)
