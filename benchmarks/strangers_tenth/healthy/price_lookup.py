"""Tool use: the model asks a price list with a tool and then says whether the ware is dear or cheap.

One tool, `price(ware)`, one round of calls. Cheap is below 50. The reward is 1.0 for the right word as the last message and
0.2 for having asked the tool at all. What the tool answers is no output of the model and stays out of the loss.
"""

import json
import random

from datasets import Dataset
from kit import pieces, quiet, sft, small
from trl import GRPOConfig, GRPOTrainer

LIST = {"lamp": 80, "cup": 12, "chair": 95, "spoon": 7, "desk": 140, "brush": 23, "clock": 64, "plate": 18, "sofa": 310, "towel": 35}

TEMPLATE = (
    "{%- for m in messages -%}{{ '<|' + m['role'] + '|>' + (m['content'] or '') }}"
    "{%- for c in m.get('tool_calls') or [] -%}"
    "{{ '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' }}"
    "{%- endfor -%}{{ '<|end|>' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
READ_BACK = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<call>",
            "close_pattern": r"</call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
    },
}


def price(ware: str) -> str:
    """
    Looks a ware up in the price list.

    Args:
        ware: The name of the ware.

    Returns:
        Its price.
    """
    return str(LIST[ware]) if ware in LIST else "unknown"


def verdict(completions, word, **kwargs):
    scores = []
    for messages, gold in zip(completions, word):
        last = messages[-1]
        said = (last.get("content") or "").strip() if last["role"] == "assistant" else ""
        scores.append(1.0 if said == gold else 0.0)
    return scores


def asked(completions, **kwargs):
    return [0.2 if any(m["role"] == "tool" for m in messages) else 0.0 for messages in completions]


def call(ware):
    return f'<call>{{"name": "price", "arguments": {json.dumps({"ware": ware})}}}</call>'


def rows_for(tok, rng, times):
    rows = []
    for ware, value in LIST.items():
        for _ in range(times):
            gold = "cheap" if value < 50 else "dear"
            word = gold if rng.random() < 0.6 else ("dear" if gold == "cheap" else "cheap")
            if rng.random() < 0.25:
                rows.append(([{"role": "user", "content": f"{ware}?"}], word))
                continue
            other = ware if rng.random() < 0.9 else rng.choice(list(LIST))
            told = f"{call(other)}<|end|><|tool|>{price(other)}<|end|><|assistant|>{word}"
            rows.append(([{"role": "user", "content": f"{ware}?"}], told))
    return rows


def build():
    rng = random.Random(7)
    corpus = [call(w) + price(w) + "?cheap dear unknown" for w in LIST]
    tok = pieces(corpus, size=330, extra=["<|user|>", "<|assistant|>", "<|tool|>", "<call>", "</call>"])
    tok.chat_template = TEMPLATE
    tok.response_template = READ_BACK
    model = small("qwen2", tok, seed=4, tie_word_embeddings=True)
    sft(model, tok, rows_for(tok, rng, 30), steps=420)
    wares = [w for w in LIST for _ in range(4)]
    rng.shuffle(wares)
    data = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"{w}?"}] for w in wares],
            "word": ["cheap" if LIST[w] < 50 else "dear" for w in wares],
        }
    )
    args = GRPOConfig(
        **quiet(
            max_steps=8,
            per_device_train_batch_size=40,
            num_generations=8,
            max_completion_length=48,
            max_tool_calling_iterations=1,
            learning_rate=6e-4,
            lr_scheduler_type="constant",
            seed=8,
        )
    )
    return GRPOTrainer(model, [verdict, asked], args=args, train_dataset=data, processing_class=tok, tools=[price])


if __name__ == "__main__":
    build().train()
