"""Prompts are conversations of several turns with a system message; the model thinks between tags before it answers, and
sometimes rambles on past the length limit: those completions (some five to ten percent) are kept out of the loss on purpose
(mask_truncated_completions) and punished by TRL's soft overlong reward, and every generation is used for two passes."""

import random
import re

from datasets import Dataset
from material import CHATML, base_args, char_tokenizer, encode, teach, tiny
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import get_soft_overlong_punishment

COINS = {"p": 1, "f": 5, "t": 10}


def purse(rng):
    return "".join(rng.choice("pft") for _ in range(rng.randrange(2, 4)))


def dialogue(rng):
    """(conversation, thought, answer): the worth of a purse, after an example earlier in the conversation."""
    first, asked = purse(rng), purse(rng)
    messages = [
        {"role": "system", "content": "p=1 f=5 t=10"},
        {"role": "user", "content": first},
        {"role": "assistant", "content": str(sum(COINS[c] for c in first))},
        {"role": "user", "content": asked},
    ]
    return messages, "+".join(str(COINS[c]) for c in asked), str(sum(COINS[c] for c in asked))


def accuracy(completions, answer, **kwargs):
    """1 if what follows </think> is the right number."""
    scores = []
    for completion, gold in zip(completions, answer):
        found = re.search(r"</think>\s*(\d+)\s*$", completion[0]["content"])
        scores.append(1.0 if found and found.group(1) == gold else 0.0)
    return scores


def thinks(completions, **kwargs):
    """0.2 for exactly one thought in front."""
    return [0.2 if re.match(r"^<think>[^<]*</think>[^<]*$", c[0]["content"]) else 0.0 for c in completions]


def build():
    tok = char_tokenizer(
        "abcdefghijklmnopqrstuvwxyz0123456789 =+\n",
        eos="<|im_end|>",
        pad="<|endoftext|>",
        extra=["<|im_start|>"],
        padding_side="left",
        chat_template=CHATML,
    )
    # visible in the decoded text, as the think tags of Qwen; the role names are single tokens as well
    tok.add_tokens(["<think>", "</think>", "system", "user", "assistant"])
    model = tiny("qwen2", tok, hidden=96)
    rng = random.Random(0)
    rows = []
    for _ in range(4000):
        messages, thought, answer = dialogue(rng)
        said = answer if rng.random() < 0.6 else str(max(0, int(answer) + rng.choice([-5, -1, 1, 5])))
        if rng.random() < 0.12:
            thought = thought + "+0" * rng.randrange(8, 14)  # rambles on
        rows.append(encode(tok, messages, f"<think>{thought}</think>{said}"))
    teach(model, rows, steps=350, lr=2e-3, pad=tok.pad_token_id)
    rng = random.Random(77)
    data = [dialogue(rng) for _ in range(160)]
    args = GRPOConfig(
        **base_args(
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            num_iterations=2,
            mask_truncated_completions=True,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=24,
            learning_rate=3e-4,
            max_steps=12,
            seed=13,
        )
    )
    dataset = Dataset.from_dict({"prompt": [m for m, _, _ in data], "answer": [a for _, _, a in data]})
    return GRPOTrainer(
        model,
        [accuracy, thinks, get_soft_overlong_punishment(max_completion_len=24, soft_punish_cache=8)],
        args=args,
        train_dataset=dataset,
        processing_class=tok,
    )
