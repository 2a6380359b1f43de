"""Makes 4-bit GGUF weights trainable: a plain folder with safetensors and tokenizer.

transformers reads GGUF but cannot save it again, and trainers refuse what is quantised. Some files
store embedding and head apart although they are one matrix, quantised twice; they are tied again.
"""

import os
import shutil
from pathlib import Path
from typing import Any

SAME_MATRIX = 0.2
"""Relative difference up to which embedding and head are one matrix."""


def convert(gguf: Path, out: Path, dtype: str = "bfloat16") -> None:
    """A folder that trainers take: dequantised, embedding and head tied, safetensors."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    kind = getattr(torch, dtype)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=kind,
        quantization_config=GgufConfig(dequantize=True),
    )
    config, state = loaded.config, dict(loaded.state_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.tie_word_embeddings = tie(state) or config.tie_word_embeddings
    model = AutoModelForCausalLM.from_config(config, dtype=kind)
    told = model.load_state_dict(state, strict=False)
    missing = set(told.missing_keys) - {"lm_head.weight"}
    if missing or told.unexpected_keys:
        raise SystemExit(
            f"convert: {gguf} does not fit its own config: {sorted(missing)[:3]} are missing, "
            f"{told.unexpected_keys[:3]} are not known.\nUse another version of transformers."
        )
    model.tie_weights()
    partial = out.with_name(f".{out.name}.partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


def tie(state: dict[str, Any]) -> bool:
    """One matrix for embedding and head where the file has it twice: the more precise one."""
    embedding, head = state["model.embed_tokens.weight"], state.get("lm_head.weight")
    if head is None or embedding.data_ptr() == head.data_ptr():
        return head is not None
    off = float((embedding.float() - head.float()).norm() / head.float().norm())
    if off > SAME_MATRIX:
        return False
    state["model.embed_tokens.weight"] = state["lm_head.weight"] = head
    return True
