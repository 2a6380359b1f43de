"""An agent with an environment and no reward function at all: the environment's get_reward is the only reward, read
from its own state after the rollout. The dialogue is: the user names a door, the model calls the tool `enter` with the
door's code, the lock answers, the model closes with one word; the tool's answer is masked by TRL itself."""

import json
import random
import string
from pathlib import Path

import trl
from datasets import Dataset
from material import base_args, byte_bpe_tokenizer, teach, tiny
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

TEMPLATE = (Path(trl.__file__).parent / "chat_templates" / "qwen3_instruct_2507.jinja").read_text()


class Keypad:
    """A lock that opens with the code of its door."""

    def __init__(self):
        self.code, self.tries, self.is_open = None, 0, False

    def reset(self, code, **kwargs):
        self.code, self.tries, self.is_open = code, 0, False
        return None

    def enter(self, code: str) -> str:
        """
        Types a code on the keypad.

        Args:
            code: one digit

        Returns:
            Whether the lock is open now.
        """
        self.tries += 1
        self.is_open = self.is_open or code == self.code
        return "open" if self.is_open else "shut"

    def get_reward(self) -> float:
        return 1.0 - 0.1 * (self.tries - 1) if self.is_open else 0.0


def call(code):
    return f'<tool_call>\n{{"name": "enter", "arguments": {{"code": "{code}"}}}}\n</tool_call>'


def question(door):
    return [{"role": "user", "content": f"door {door}"}]


DOORS = {letter: str((7 * i + 3) % 10) for i, letter in enumerate(string.ascii_lowercase)}


def lesson(tok, tools, seed=0):
    """Calls with the right code half of the time, and the closing word after the lock's answer."""
    rng = random.Random(seed)
    rows = []
    for door, right in DOORS.items():
        head = tok.apply_chat_template(
            [question(door)], tools=tools, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"][0]
        for _ in range(20):
            code = right if rng.random() < 0.5 else str((int(right) + rng.choice([-2, -1, 1, 2])) % 10)
            turn = tok(call(code), add_special_tokens=False)["input_ids"] + [tok.eos_token_id]
            rows.append((head, turn))
            said = "open" if code == right else "shut"
            fed = tok(
                f"\n<|im_start|>user\n<tool_response>\n{said}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
                add_special_tokens=False,
            )["input_ids"]
            if rng.random() < 0.3:
                rows.append((head + turn + fed, tok("done", add_special_tokens=False)["input_ids"] + [tok.eos_token_id]))
    return rows


def build():
    specials = ["<|im_start|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    schema = json.dumps(get_json_schema(Keypad().enter))
    corpus = [TEMPLATE, schema] * 20 + [f"door {d}\n" + call(c) for d, c in DOORS.items()]
    tok = byte_bpe_tokenizer(corpus, vocab_size=700, eos="<|im_end|>", extra=specials, padding_side="left")
    tok.chat_template = TEMPLATE
    model = tiny("qwen3", tok)

    # the SFT checkpoint: first the dialogue alone, then with the tools' description in front
    teach(model, lesson(tok, None), steps=400, lr=3e-3, batch=32, pad=tok.pad_token_id)
    teach(model, lesson(tok, [Keypad().enter]), steps=100, lr=1e-3, batch=12, pad=tok.pad_token_id)
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=96,
            max_tool_calling_iterations=2,
            learning_rate=3e-4,
            max_steps=8,
            seed=4,
        )
    )
    doors = sorted(DOORS)
    dataset = Dataset.from_dict({"prompt": [question(d) for d in doors], "code": [DOORS[d] for d in doors]})
    return GRPOTrainer(model, args=args, train_dataset=dataset, processing_class=tok, environment_factory=Keypad)
