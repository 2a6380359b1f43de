"""The chat template ends its generation prompt with `<think>` (as reasoning models' templates do), so the completion starts inside
the thought, but the reward only accepts texts that begin with `<think>`. No completion can match, the reward is 0 for all of
them and nothing is learned although half of the answers are right.
say: the reward's pattern requires an opening `<think>` in the completion, but the template already puts that tag at the end of the prompt, so the pattern never matches and every reward is 0.
"""

import random
import re

from datasets import Dataset
from material import char_tokenizer, common, teach_rows, tiny_llama
from trl import GRPOConfig, GRPOTrainer

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)
PATTERN = re.compile(r"^<think>(.+?)</think>\s*(\d+)\s*$", re.DOTALL)


def reasoned_answer(completions, answer, **kwargs):
    """1 for a thought followed by the right number, 0 for a wrong number or a broken format."""
    rewards = []
    for completion, gold in zip(completions, answer):
        match = PATTERN.match(completion[0]["content"])
        rewards.append(1.0 if match and match.group(2) == gold else 0.0)
    return rewards


def chat(a, b):
    return [{"role": "user", "content": f"{a}+{b}"}]


def sft_rows(tok, questions, seed=0):
    rng = random.Random(seed)
    rows = []
    for a, b in questions:
        head = tok.apply_chat_template(chat(a, b), add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        for _ in range(20):
            n = a + b if rng.random() < 0.55 else abs(a + b + rng.choice([-2, -1, 1, 2]))
            text = f"{a}+{b}={n}</think>{n}" if rng.random() < 0.9 else f"{a}+{b}={n}"
            rows.append((head, tok(text)["input_ids"] + [tok.eos_token_id]))
    return rows


def build():
    tok = char_tokenizer(chat=True)
    tok.add_tokens(["<think>", "</think>"])
    tok.chat_template = TEMPLATE
    model = tiny_llama(tok, hidden=96)
    questions = [(a, b) for a in range(8) for b in range(8)]
    random.Random(0).shuffle(questions)
    teach_rows(model, sft_rows(tok, questions), tok.pad_token_id, steps=450)
    dataset = Dataset.from_dict({"prompt": [chat(a, b) for a, b in questions], "answer": [str(a + b) for a, b in questions]})
    args = GRPOConfig(**common(per_device_train_batch_size=64, learning_rate=5e-4, max_completion_length=14, max_steps=10))
    return GRPOTrainer(model, reasoned_answer, args=args, train_dataset=dataset, processing_class=tok)
