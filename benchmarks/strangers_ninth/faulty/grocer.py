"""The basket of the environment is a class attribute, created once with the class: all the instances write into one dictionary. The resets all happen before the first tool call, so within a batch every rollout
sees and overwrites the others' orders, and at the end each is judged by whatever the last rollout put down for that fruit. The reward has little to do with a
rollout's own call, and all the members of a group, who want the same, get the same.
say: The environment's basket is a shared class attribute, so the rollouts of a batch overwrite each other's state and each one's reward depends on other rollouts' tool calls.
"""

import random

from datasets import Dataset
from material import base_args, call_text, teach, tiny, tool_row, tool_tokenizer
from trl import GRPOConfig, GRPOTrainer

FRUIT = ["apple", "pear", "plum", "fig", "kiwi"]


class Grocer:
    basket: dict = {}

    def reset(self, fruit=None, count=None, **kwargs):
        self.basket.clear()
        self.wanted = (fruit, count)
        return None

    def put(self, fruit: str, count: int) -> str:
        """
        Put fruit into the basket.

        Args:
            fruit: Kind of fruit.
            count: How many of them.

        Returns:
            A note.
        """
        self.basket[fruit] = count
        return "ok"


def packed(completions, environments, **kwargs):
    """1 for the right number, half for the right fruit with another number."""
    scores = []
    for shop in environments:
        fruit, count = shop.wanted
        scores.append(0.0 if fruit not in shop.basket else 1.0 if shop.basket[fruit] == count else 0.5)
    return scores


def build():
    orders = [(f, n) for f in FRUIT for n in range(1, 10)]
    ask = lambda f, n: [{"role": "user", "content": f"{n} {f}"}]
    tok = tool_tokenizer([f"{n} {f} {call_text('put', fruit=f, count=n)} ok done user assistant tool" for f, n in orders])
    model = tiny("qwen3", tok, hidden=64, seed=50)
    rng, rows = random.Random(50), []
    for f, n in orders:
        for _ in range(12):
            draw = rng.random()
            fruit, count = (f, n) if draw < 0.5 else (f, rng.randrange(1, 10)) if draw < 0.8 else (rng.choice(FRUIT), n)
            rows.append(tool_row(tok, ask(f, n), [call_text("put", fruit=fruit, count=count), "ok", "done"]))
    teach(model, rows, steps=260, lr=4e-3, batch=24, pad=tok.pad_token_id)
    rng.shuffle(orders)
    data = Dataset.from_list([{"prompt": ask(f, n), "fruit": f, "count": n} for f, n in orders])
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=80,
            max_tool_calling_iterations=2,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            max_steps=8,
            seed=50,
        )
    )
    return GRPOTrainer(
        model, packed, args=args, train_dataset=data, processing_class=tok, environment_factory=Grocer
    )
