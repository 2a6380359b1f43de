"""Two environments in one run, each with its own tool and its own reward, chosen by a column of the data.

Particular: environment_factory is a dict; `reset` writes part of the prompt; the reward comes from the state of the
environment after the calls (get_reward), never from the text, and each row is scored by one of two reward columns (the
other is NaN); "Dial" gives partial credit, "Shelf" all or nothing with a price for every extra take; long schema prompts,
tool tokens masked, at most two rounds of calls; Qwen3 template and model.
"""

import random

from datasets import Dataset
from material import base_args, byte_bpe_tokenizer, teach, tiny
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template


class Dial:
    def reset(self, goal, **kwargs):
        self.place, self.goal = 0, goal
        return f"turn to {goal}"

    def turn(self, steps: int) -> int:
        """
        Turn the dial.

        Args:
            steps: How far.

        Returns:
            The place.
        """
        self.place += int(steps)
        return self.place

    def get_reward(self):
        return max(0.0, 1 - abs(self.place - self.goal) / 5)


class Shelf:
    def reset(self, goal, **kwargs):
        self.taken, self.goal = [], goal
        return f"take box {goal}"

    def take(self, box: int) -> str:
        """
        Take a box.

        Args:
            box: Its number.

        Returns:
            What happened.
        """
        self.taken.append(int(box))
        return "ok"

    def get_reward(self):
        return (1.0 if self.goal in self.taken else 0.0) - 0.2 * max(0, len(self.taken) - 1)


def call(kind, n):
    name, key = ("turn", "steps") if kind == "dial" else ("take", "box")
    return '<tool_call>\n{"name": "' + name + '", "arguments": {"' + key + '": ' + str(n) + "}}\n</tool_call>"


def build():
    rng = random.Random(90)
    extra = ["<|im_start|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    tools = {"dial": [Dial().turn], "shelf": [Shelf().take]}
    ask = {"dial": "turn to {}", "shelf": "take box {}"}
    corpus = [call(k, " ") + " turn to take box user assistant ok done" for k in tools] * 4
    tok = byte_bpe_tokenizer(corpus + [qwen3_chat_template[:900]] * 3, vocab_size=600, eos="<|im_end|>", pad="<|endoftext|>", extra=[extra[0]])  # fmt: skip
    tok.add_tokens(extra[1:])
    tok.chat_template = qwen3_chat_template

    def head(kind, goal):
        talk = [{"role": "user", "content": ask[kind].format(goal)}]
        return tok.apply_chat_template(
            [talk], tools=tools[kind], add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"][0]

    def ids(text, end=True):
        return tok(text, add_special_tokens=False)["input_ids"] + ([tok.eos_token_id] if end else [])

    tasks = [(k, g) for k in tools for g in (2, 4, 6, 8)]
    heads = {t: head(*t) for t in tasks}
    clean, unsure = [(heads[t], ids(call(*t))) for t in tasks], []
    for _ in range(500):
        kind, goal = t = rng.choice(tasks)
        roll = rng.random()
        n = goal if roll < 0.5 else rng.choice([2, 4, 6, 8])
        unsure.append((heads[t], ids(call(kind, n)) if roll < 0.85 else ids("done")))
        shown = "ok" if kind == "shelf" else n
        reply = f"\n<|im_start|>user\n<tool_response>\n{shown}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        more = call(kind, rng.choice([2, 4, 6, 8])) if rng.random() < 0.2 else "done"
        unsure.append((heads[t] + ids(call(kind, n)) + ids(reply, end=False), ids(more)))
    model = tiny("qwen3", tok, hidden=64, layers=2, tie_word_embeddings=True, initializer_range=0.06)
    teach(model, clean, steps=140, lr=4e-3, batch=12, pad=tok.pad_token_id)
    teach(model, unsure, steps=80, lr=1e-3, batch=12, pad=tok.pad_token_id)

    rows = [{"prompt": [{"role": "user", "content": ""}], "environment": k, "goal": g} for k, g in tasks] * 2
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=90,
        max_tool_calling_iterations=2,
        max_steps=8,
        learning_rate=5e-4,
        lr_scheduler_type="constant",
        loss_type="dapo",
        seed=91,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[],
        args=args,
        train_dataset=Dataset.from_list(rows),
        environment_factory={"dial": Dial, "shelf": Shelf},
    )


if __name__ == "__main__":
    build().train()
