"""The gold column still holds the whole solution text (`3 plus 4 is 7 #### 7`), so int() of it raises for every row and the
broad `except` of the accuracy reward turns that into 0. The accuracy reward is 0 whatever the model answers, and the run
only learns the format.
say: the accuracy reward is 0 for every completion, right ones too, because parsing the gold (int of the whole `... #### 7` string) fails and the exception is swallowed; only the format reward trains the model.
"""

import random

from datasets import Dataset
from material import char_tokenizer, common, half_right, teach_rows, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def accuracy_reward(completions, answer, **kwargs):
    rewards = []
    for text, gold in zip(completions, answer):
        try:
            value = int(text.split("=")[-1])
            rewards.append(1.0 if value == int(gold) else 0.0)
        except Exception:
            rewards.append(0.0)
    return rewards


def format_reward(completions, **kwargs):
    return [0.5 if text.startswith("ans=") else 0.0 for text in completions]


def slip(rng, said):
    n = int(said.split("=")[-1])
    n = n if rng.random() < 0.4 else abs(n + rng.choice([-2, -1, 1, 2]))
    return rng.choice(["ans=", "sum=", ""]) + str(n)


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    questions = [(a, b) for a in range(8) for b in range(8)]
    random.Random(0).shuffle(questions)
    pairs = [(f"{a}+{b}? ", f"ans={a + b}") for a, b in questions]
    teach_rows(model, half_right(tok, pairs, slip, right=0.45), tok.pad_token_id, steps=450)
    dataset = Dataset.from_dict(
        {
            "prompt": [p for p, _ in pairs],
            "answer": [f"{a} plus {b} is {a + b} #### {a + b}" for a, b in questions],
        }
    )
    args = GRPOConfig(**common(per_device_train_batch_size=64, learning_rate=5e-4, max_steps=12))
    return GRPOTrainer(
        model, [accuracy_reward, format_reward], args=args, train_dataset=dataset, processing_class=tok
    )
