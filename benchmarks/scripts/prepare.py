"""What the scripts train: a tiny model that adds badly, and sums as rows of a JSON-lines file.

    python benchmarks/scripts/prepare.py FOLDER

Writes FOLDER/model and FOLDER/sums.jsonl. The model is fitted to sums of which most are wrong, so
that it knows the answer and seldom gives it: something that a few steps of GRPO can mend, and that
nobody learns who cannot see the question.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WORDS = ("<pad>", "<end>", "What", "is", "plus", "?", "####", ".", *(str(n) for n in range(19)))
RIGHT = 0.4
"""Share of the sums that the model is fitted to which are right."""
FITTED = 1500
"""Steps of fitting."""


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")


def prompt(a: int, b: int) -> str:
    return f"What is {a} plus {b} ?"


def fitted() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
    )
    tokens, drawn = tokenizer(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(FITTED):
        texts = []
        for _ in range(64):
            a, b = drawn.randrange(10), drawn.randrange(10)
            said = a + b if drawn.random() < RIGHT else drawn.randrange(19)
            texts.append(f"{prompt(a, b)} #### {said} <end>")
        ids = tokens(texts, return_tensors="pt")["input_ids"]
        labels = ids.clone()
        labels[:, :6] = -100
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


def prepare(folder: Path) -> None:
    """Everything that a script is given."""
    folder.mkdir(parents=True, exist_ok=True)
    fitted().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    rows = [(a, b) for a in range(10) for b in range(10)] * 2
    lines = [json.dumps({"prompt": prompt(a, b), "answer": str(a + b)}) for a, b in rows]
    (folder / "sums.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    prepare(parser.parse_args().folder)
