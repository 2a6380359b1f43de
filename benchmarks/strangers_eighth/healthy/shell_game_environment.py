"""A game through an environment: gold lies under one of five cups and the prompt names the landmark beside it. The policy lifts
cups with a tool, the environment pays for finding the gold with few lifts (negative when it is not found), and a second reward
function with a small weight asks that the dialogue ends with the word `done`. Every reset puts the whole state back. The tokens
which the tool writes are masked by the trainer. Sequence level ratios with loss_type grpo."""

import random

from datasets import Dataset
from material import base_args, call_text, teach, tiny, tool_row, tool_tokenizer
from trl import GRPOConfig, GRPOTrainer

LANDMARKS = {"well": 1, "oak": 2, "fence": 3, "stone": 4, "gate": 5}
PEOPLE = ["ann", "bob", "cleo", "dan", "eve", "fred", "gina", "hugo"]


class ShellGame:
    def __init__(self):
        self.gold, self.lifts, self.found = 0, 0, False

    def reset(self, gold: int, **kwargs) -> None:
        self.gold, self.lifts, self.found = int(gold), 0, False

    def lift(self, cup: int) -> str:
        """Lift a cup.

        Args:
            cup: Number of the cup, 1 to 5.

        Returns:
            What was under it.
        """
        self.lifts += 1
        self.found = self.found or int(cup) == self.gold
        return "gold" if int(cup) == self.gold else "empty"

    def get_reward(self) -> float:
        if not self.found:
            return -0.5
        return 1.0 - 0.35 * (self.lifts - 1)


def closes(completions, **kwargs):
    """0.2 for a dialogue whose last message is `done`."""
    return [0.2 * float(messages[-1].get("content", "").strip() == "done") for messages in completions]


def question(person, mark):
    return [{"role": "user", "content": f"{person} hid gold by the {mark}"}]


def lift(cup):
    return call_text("lift", cup=cup)


def build():
    pairs = [(p, m) for p in PEOPLE for m in LANDMARKS]
    corpus = [f"{p} hid gold by the {m}" for p, m in pairs] + [lift(c) for c in range(1, 6)] * 8
    corpus += ["user\n", "assistant\n", "tool\n", "gold", "empty", "done"] * 20
    tok = tool_tokenizer(corpus, vocab_size=400)
    model = tiny("qwen3", tok, hidden=64)
    rng = random.Random(0)
    rows = []
    for person, mark in pairs * 8:
        gold = LANDMARKS[mark]
        first = gold if rng.random() < 0.45 else rng.randrange(1, 6)
        turns = [lift(first)]
        if first == gold:
            turns += ["gold", "done"]
        else:
            second = gold if rng.random() < 0.5 else rng.randrange(1, 6)
            turns += ["empty", lift(second), "gold" if second == gold else "empty", "done"]
        rows.append(tool_row(tok, question(person, mark), turns))
    teach(model, rows, steps=220, lr=3e-3, pad=tok.pad_token_id)
    dataset = Dataset.from_dict({"prompt": [question(*p) for p in pairs], "gold": [LANDMARKS[m] for _, m in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=40,
            num_generations=8,
            max_completion_length=80,
            max_tool_calling_iterations=3,
            learning_rate=4e-4,
            importance_sampling_level="sequence",
            loss_type="grpo",
            max_steps=8,
            seed=4,
        )
    )
    return GRPOTrainer(
        model, closes, args=args, train_dataset=dataset, processing_class=tok, environment_factory=ShellGame
    )
