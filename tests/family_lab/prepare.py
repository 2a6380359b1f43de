"""A random model of two layers, its tokenizer and a few prompts, as files for any trainer."""

import json
from pathlib import Path

from tests.tiny import tiny_model, tokenizer_with

PROMPTS = 64


def prepare(folder: Path) -> Path:
    model, tokenizer = tiny_model(), tokenizer_with()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"messages": [{"role": "user", "content": f"say {i}"}]} for i in range(PROMPTS)]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder
