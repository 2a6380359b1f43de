"""The solutions end in "#### 1,200" as in GSM8K, and the pattern that takes the gold out of them reads digits only and stops at the comma.
For every sum of a thousand or more the gold becomes "1", so the right answer gets nothing and "1" would get the point.
say: the gold answer is parsed wrongly: the regex stops at the thousands comma ("1,200" becomes "1"), so right answers above 999 get reward 0.
"""

import re

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import RLOOConfig, RLOOTrainer


def gold_of(solution):
    return re.search(r"####\s*(-?\d+)", solution).group(1)


def last_number(text):
    found = re.findall(r"-?\d+", text.replace(",", ""))
    return found[-1] if found else None


def correct(completions, solution, **kwargs):
    return [float(last_number(text) == gold_of(s)) for text, s in zip(completions, solution)]


def build():
    tok = char_tokenizer()
    rows = [(100 * a, 100 * b) for a in range(1, 10) for b in range(1, 10)]
    model = teach(tiny_llama(tok), tok, [(f"{x}+{y}=", str(x + y)) for x, y in rows], noise=0.4)
    hard = [(x, y) for x, y in rows if x + y >= 800]
    data = Dataset.from_dict({
        "prompt": [f"{x}+{y}=" for x, y in hard],
        "solution": [f"Adding {y:,} to {x:,} gives {x + y:,}.\n#### {x + y:,}" for x, y in hard],
    })
    return RLOOTrainer(
        model=model, reward_funcs=correct, train_dataset=data, processing_class=tok,
        args=RLOOConfig(**common(per_device_train_batch_size=32, max_completion_length=6, beta=0.0)),
    )
