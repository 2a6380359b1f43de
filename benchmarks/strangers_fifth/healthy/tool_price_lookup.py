"""Tool use: the model calls a price lookup and then answers with what it returned.

Particular: tools= with the Qwen3 chat template, so every prompt begins with a long rendered tool schema shared by all
rows; completions are several turns long and hold tool tokens that the loss must skip (tool_mask); calls with wrong
arguments make the tool fail, which is part of learning; at most one round of calls; the rewards read the whole message
list; DAPO loss, two accumulation steps.
"""

import json
import random

from datasets import Dataset
from material import base_args, byte_bpe_tokenizer, teach, tiny
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

PRICES = {
    "pear": 7,
    "apple": 3,
    "melon": 9,
    "grape": 4,
    "lemon": 2,
    "mango": 8,
    "peach": 5,
    "berry": 6,
}


def price_of(item: str) -> int:
    """
    Look up the price of an item.

    Args:
        item: The item.

    Returns:
        The price.
    """
    return PRICES[item]


def ask(item):
    return [{"role": "user", "content": f"price of {item}"}]


def call(item):
    return '<tool_call>\n{"name": "price_of", "arguments": {"item": "' + item + '"}}\n</tool_call>'


def answered(completions, price, **kwargs):
    """The last message of the assistant is the price."""
    out = []
    for messages, gold in zip(completions, price):
        last = messages[-1]
        said = (last.get("content") or "").strip() if last["role"] == "assistant" else ""
        out.append(1.0 if said == str(gold) else 0.0)
    return out


def asked_the_tool(completions, **kwargs):
    return [0.2 if any(m["role"] == "tool" for m in messages) else 0.0 for messages in completions]


def build():
    rng = random.Random(44)
    extra = [
        "<|im_start|>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    ]
    corpus = [call(i) + f" price of {i} user assistant system 1 2 3 4 5 6 7 8 9" for i in PRICES]
    corpus += [json.dumps(get_json_schema(price_of))] * 3 + [qwen3_chat_template[:600]] * 3
    tok = byte_bpe_tokenizer(
        corpus, vocab_size=1000, eos="<|im_end|>", pad="<|endoftext|>", extra=[extra[0]]
    )
    tok.add_tokens(
        extra[1:]
    )  # as in Qwen3: tokens of their own, yet not special, so decoding keeps them
    tok.chat_template = qwen3_chat_template
    model = tiny(
        "qwen3", tok, hidden=64, layers=2, tie_word_embeddings=True, initializer_range=0.06
    )

    items = list(PRICES)
    head = {
        i: tok.apply_chat_template(
            [ask(i)], tools=[price_of], add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"][0]
        for i in items
    }

    def ids(text):
        return tok(text, add_special_tokens=False)["input_ids"] + [tok.eos_token_id]

    def after_tool(item, named, price):
        result = (
            "\n<|im_start|>user\n<tool_response>\n"
            + str(price)
            + "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        return head[item] + ids(call(named)) + tok(result, add_special_tokens=False)["input_ids"]

    clean, unsure = [], []
    for i in items:
        clean.append((head[i], ids(call(i))))
        clean.append((after_tool(i, i, PRICES[i]), ids(str(PRICES[i]))))
    for _ in range(600):
        i = rng.choice(items)
        style = rng.random()
        if style < 0.45:
            unsure.append((head[i], ids(call(i))))
        elif style < 0.65:
            unsure.append((head[i], ids(call(rng.choice(items)))))  # the wrong item
        else:
            unsure.append((head[i], ids(str(rng.randint(1, 9)))))  # a guess without the tool
        shown = PRICES[i] if rng.random() < 0.7 else rng.randint(1, 9)
        said = shown if rng.random() < 0.6 else rng.randint(1, 9)
        unsure.append((after_tool(i, i, shown), ids(str(said))))
    teach(model, clean, steps=120, lr=3e-3, batch=16, pad=tok.pad_token_id)
    teach(model, unsure, steps=120, lr=2e-3, batch=16, pad=tok.pad_token_id)

    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=96,
        max_tool_calling_iterations=1,
        max_steps=10,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        seed=9,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[answered, asked_the_tool],
        args=args,
        tools=[price_of],
        train_dataset=Dataset.from_dict(
            {"prompt": [ask(i) for i in items * 4], "price": [PRICES[i] for i in items * 4]}
        ),
    )


if __name__ == "__main__":
    build().train()
