"""The completion is code: it is compiled and run against the unit tests of its row.

Particular: four tasks in all, repeated over and over in a fixed order (shuffle_dataset=False), the tests as a JSON text
in a column; partial credit for each passed test, -0.5 for what does not compile, a small bonus for all tests passed;
StarCoder2 with biases everywhere; sequence mean ("grpo" loss), accumulation of 4, gradient clipping off.
"""

import json
import random

from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer

TASKS = {
    "# double x\nf=lambda x:": ("2*x", ["x+2", "x*x", "x+x", "2+x", "x*2", "2*x-1"]),
    "# x without sign\nf=lambda x:": ("abs(x)", ["-x", "x*x", "x", "abs(x", "abs(-x)", "x+abs(x)"]),
    "# the square of x\nf=lambda x:": ("x*x", ["2*x", "x+x", "x**2", "x**x", "abs(x)", "x*x*x"]),
    "# one less than x\nf=lambda x:": ("x-1", ["1-x", "x+1", "x-2", "x-(1", "x", "-1+x"]),
}
PROBES = [-3, -1, 0, 1, 2, 5]


def run(expression, cases):
    """The share of passed cases; None when it does not compile."""
    try:
        code = compile(expression.strip(), "<completion>", "eval")
    except (SyntaxError, ValueError):
        return None
    passed = 0
    for case in cases:
        try:
            passed += eval(code, {"__builtins__": {}, "abs": abs}, {"x": case["x"]}) == case["y"]
        except Exception:
            pass
    return passed / len(cases)


def unit_tests(completions, tests, **kwargs):
    out = []
    for text, case_text in zip(completions, tests):
        # only short expressions are run: nothing here can take long
        share = run(text, json.loads(case_text)) if len(text) <= 16 and text.count("**") <= 1 else None
        out.append(-0.5 if share is None else share + (0.25 if share == 1.0 else 0.0))
    return out


def build():
    rng = random.Random(0)
    tok = char_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789+-*/()=:# \n")
    model = tiny("starcoder2", tok, hidden=64, layers=2, initializer_range=0.05)
    lessons = []
    for _ in range(2000):
        prompt, (right, wrong) = rng.choice(list(TASKS.items()))
        lessons.append(encode(tok, prompt, right if rng.random() < 0.25 else rng.choice(wrong)))
    teach(model, lessons, steps=160, lr=3e-3, pad=tok.pad_token_id)

    def tests(right):
        return json.dumps([{"x": x, "y": eval(right, {"abs": abs}, {"x": x})} for x in PROBES])

    rows = [{"prompt": p, "tests": tests(right)} for p, (right, _) in TASKS.items()] * 8
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=4,
        num_generations=16,
        max_completion_length=14,
        max_steps=10,
        learning_rate=4e-4,
        lr_scheduler_type="linear",
        max_grad_norm=0.0,
        loss_type="grpo",
        shuffle_dataset=False,
        seed=2,
    )
    return GRPOTrainer(
        model=model, processing_class=tok, reward_funcs=unit_tests, args=args, train_dataset=Dataset.from_list(rows)
    )


if __name__ == "__main__":
    build().train()
