"""Loads policies: the embedded lab policy, a local folder or a hub name."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flatline.config import LAB, refuse_missing_model
from flatline.errors import ModelError
from flatline.rollout.chat import load_chat_template
from flatline.training.lab.tokenizer import checkpoint_folder

_SMALL = 10_000_000
"""Parameters up to which one CPU thread is the fastest."""


class LoadedPolicy(NamedTuple):
    """A model in eval mode and its tokenizer."""

    model: Any
    tokenizer: Any


def load_policy(
    name: str,
    *,
    device: str | None = None,
    dtype: str = "float32",
    chat_template: str | None = None,
) -> LoadedPolicy:
    """`lab`, a folder with safetensors, or a hub name."""
    place = checkpoint_folder() if name == LAB else name
    refuse_missing_model(name)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
        model, loading = AutoModelForCausalLM.from_pretrained(
            place, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ModelError(
            f"The model {name!r} cannot be loaded: {first_line}\n"
            "A policy is `lab` (embedded), a folder with config.json, tokenizer and safetensors, "
            "or a hub name. Pickled weights are never loaded.\n"
            "Try `--model lab`, or give the path of a local folder."
        ) from error
    _refuse_random_tensors(name, sorted(loading["missing_keys"]))
    if device == "cpu" and model.num_parameters() < _SMALL:
        # A second thread gains little on kernels this small, and on a busy machine the threads
        # wait for each other most of the time.
        torch.set_num_threads(1)
    if chat_template:
        tokenizer.chat_template = load_chat_template(chat_template)
    return LoadedPolicy(model.to(device).eval(), tokenizer)


def _refuse_random_tensors(name: str, missing: Sequence[str]) -> None:
    """transformers fills what a checkpoint lacks with random numbers and goes on."""
    if missing:
        raise ModelError(
            f"The weights of {name!r} lack {len(missing)} tensors, the first is `{missing[0]}`. "
            "They would be random numbers.\n"
            "Save the whole model, or give the folder of a checkpoint that was written to its end."
        )
