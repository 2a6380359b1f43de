"""Rows scored one by one with the trainer's model, by the specification and nothing of TRL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatline.spec.logprobs import logprobs


@dataclass(frozen=True, slots=True)
class Row:
    """One completion behind its prompt."""

    prompt: list[int]
    completion: list[int]
    mask_T: Tensor
    """What carries a loss, by the specification."""
    cut: bool


class Scorer:
    """The model of a trainer, asked for one row at a time."""

    def __init__(self, trainer: Any, temperature: float) -> None:
        self._trainer = trainer
        self._model = trainer.accelerator.unwrap_model(trainer.model)
        self._device = str(next(self._model.parameters()).device)
        self._temperature = temperature

    def __call__(self, row: Row) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of each token of the completion."""
        return logprobs(self._logits, row.prompt, row.completion, self._temperature, self._device)

    def all(self, rows: Sequence[Row]) -> list[Tensor]:
        """Log-probs without a gradient."""
        with torch.no_grad():
            return [self(row)[0] for row in rows]

    def reference(self, rows: Sequence[Row]) -> list[Tensor] | None:
        """The base under the adapters; None without adapters, or with one that is the reference."""
        adapters = getattr(self._model, "peft_config", None)
        if adapters is None or "ref" in adapters:
            return None
        with self._model.disable_adapter():
            return self.all(rows)

    def _logits(self, ids_1L: Tensor) -> Tensor:
        with self._trainer.accelerator.autocast():
            seen_1L = torch.ones_like(ids_1L)
            found = self._model(input_ids=ids_1L, attention_mask=seen_1L, use_cache=False)
        logits: Tensor = found.logits
        return logits


@contextmanager
def sampling_hooks(model: Any) -> Iterator[list[Tensor]]:
    """The logits of the last position at every call of the model. What its head makes is not yet
    what is drawn from: Cohere and Granite scale it, Gemma caps it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    heard = list[Tensor]()

    def hear(_: Any, __: Any, found: Any) -> None:
        if isinstance(logits := getattr(found, "logits", None), Tensor):
            heard.append(logits.detach()[:, -1].float())

    handle = inner.register_forward_hook(hear)
    try:
        yield heard
    finally:
        handle.remove()
