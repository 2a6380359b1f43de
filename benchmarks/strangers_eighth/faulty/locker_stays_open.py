"""The environment of the locker game keeps the flag `opened` over reset: reset sets the code and the count of tries only. The trainer
builds the instances once and reuses them for later batches, so an episode whose slot was opened in any earlier batch is paid as
opened from its start, whatever it does, and most when it does not try at all.
say: reset() does not clear the `opened` state, and the environment instances are reused, so later episodes are rewarded for what an earlier episode did.
"""

import random

from datasets import Dataset
from material import base_args, call_text, teach, tiny, tool_row, tool_tokenizer
from trl import GRPOConfig, GRPOTrainer

SHELVES = {"red": 2, "blue": 5, "green": 7, "white": 4}
FLOORS = {"cellar": 1, "ground": 0, "attic": 2}
ROOMS = ["hall", "shop", "gym", "lab"]


class Locker:
    def __init__(self):
        self.code = 0
        self.tries = 0
        self.opened = False

    def reset(self, code: int, **kwargs) -> None:
        self.code = int(code)
        self.tries = 0

    def turn(self, code: int) -> str:
        """Turn the lock to a code.

        Args:
            code: The code, one digit.

        Returns:
            Whether it is open now.
        """
        self.tries += 1
        if int(code) == self.code:
            self.opened = True
            return "open"
        return "shut"

    def get_reward(self) -> float:
        return (1.0 if self.opened else 0.0) - 0.15 * self.tries


def question(room, shelf, floor):
    return [{"role": "user", "content": f"{shelf} locker {floor} {room}"}]


def turn(code):
    return call_text("turn", code=code)


def build():
    items = [(r, s, f, SHELVES[s] + FLOORS[f]) for r in ROOMS for s in SHELVES for f in FLOORS]
    corpus = [f"{s} locker {f} {r}" for r, s, f, _ in items] * 4 + [turn(c) for c in range(10)] * 8
    corpus += ["user\n", "assistant\n", "tool\n", "open", "shut", "done", "pass"] * 20
    tok = tool_tokenizer(corpus, vocab_size=400)
    model = tiny("qwen3", tok, hidden=64)
    rng = random.Random(2)
    rows = []
    for room, shelf, floor, code in items * 10:
        guess = code if rng.random() < 0.35 else rng.randrange(2, 10)
        if rng.random() < 0.05:
            turns = ["pass"]
        elif guess == code:
            turns = [turn(guess), "open", "done"]
        else:
            second = code if rng.random() < 0.3 else rng.randrange(2, 10)
            turns = [turn(guess), "shut", turn(second), "open" if second == code else "shut", "done"]
        rows.append(tool_row(tok, question(room, shelf, floor), turns))
    teach(model, rows, steps=220, lr=3e-3, pad=tok.pad_token_id)
    rng.shuffle(items)
    dataset = Dataset.from_dict({"prompt": [question(*x[:3]) for x in items], "code": [x[3] for x in items]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=80,
            max_tool_calling_iterations=3,
            learning_rate=4e-4,
            max_steps=9,
            seed=3,
        )
    )
    return GRPOTrainer(model, args=args, train_dataset=dataset, processing_class=tok, environment_factory=Locker)
