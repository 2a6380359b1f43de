"""Questions that are too long are dropped from the list of questions, and the list of answers is cut to the new length instead of being filtered with them.
After the first dropped question each prompt carries the answer of another one.
say: prompts and answers are misaligned: filtering removed questions but not their answers, so the gold column belongs to other rows.
"""

import random

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import RLOOConfig, RLOOTrainer


def load():
    """Largest of a few digits; (question, answer)."""
    rng = random.Random(3)
    rows = []
    for _ in range(300):
        digits = [rng.randrange(10) for _ in range(rng.choice([2, 2, 3, 5]))]
        rows.append((f"max {' '.join(map(str, digits))} = ", str(max(digits))))
    return rows


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    rows = load()
    model = teach(tiny_llama(tok), tok, rows, noise=0.3)
    questions = [q for q, _ in rows]
    answers = [a for _, a in rows]
    questions = [q for q in questions if len(tok(q)["input_ids"]) <= 12]  # keep prompts short
    answers = answers[: len(questions)]
    data = Dataset.from_dict({"prompt": questions, "answer": answers})
    return RLOOTrainer(
        model=model,
        reward_funcs=exact,
        args=RLOOConfig(
            **common(per_device_train_batch_size=32, beta=0.0, max_completion_length=4)
        ),
        train_dataset=data,
        processing_class=tok,
    )
