"""Supervised fine-tuning on recorded plays: transformers' trainer, with the loss on what the player
wrote and on nothing else."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers import TrainingArguments as Arguments

from flatline.config import RunConfig
from flatline.errors import ConfigError, ModelError
from flatline.rollout.engine import KERNELS
from flatline.rollout.record import Author, Rollout

IGNORED = -100
"""Label of a token that has no loss."""


class Imitation(Trainer):  # type: ignore[misc]
    """Keeps off the attention kernel whose gradients are NaN where rows are padded."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with sdpa_kernel(KERNELS):
            loss: Tensor = super().training_step(*args, **kwargs)
        return loss


def fit(
    model: Any,
    plays: Sequence[Rollout],
    config: RunConfig,
    *,
    steps: int,
    rate: float,
    on_step: Callable[[int, float], None],
) -> list[float]:
    """Imitate the plays; the loss of every step, in nats per token of the player."""
    listener = _Listener(on_step)
    trainer = Imitation(
        model=model,
        args=arguments(config, steps=steps, rate=rate),
        train_dataset=[row_of(play) for play in plays],
        data_collator=collate,
        callbacks=[listener],
    )
    for kind in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(kind)
    try:
        trainer.train()
    except torch.OutOfMemoryError as error:
        longest = max(len(play.prompt_ids) + len(play.completion_ids) for play in plays)
        raise ConfigError(
            f"Memory ran out with {config.batch_size} episodes of up to {longest} tokens at once.\n"
            f"Take fewer: `--batch-size {max(1, config.batch_size // 2)}`."
        ) from error
    return listener.losses


def arguments(config: RunConfig, *, steps: int, rate: float) -> Arguments:
    """Every value that matters, whatever the default is today."""
    return Arguments(
        output_dir=config.output_dir,
        report_to=[],
        seed=config.seed,
        data_seed=config.seed,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=1,
        max_steps=steps,
        optim="adamw_torch",
        learning_rate=rate,
        lr_scheduler_type="linear",
        warmup_steps=steps // 20,
        weight_decay=0.0,
        adam_beta1=config.adam_beta1,
        adam_beta2=config.adam_beta2,
        max_grad_norm=config.max_grad_norm,
        bf16=config.bf16,
        fp16=False,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        remove_unused_columns=False,
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def row_of(play: Rollout) -> dict[str, list[int]]:
    """Tokens as they were played, and labels on those that the player wrote."""
    written = zip(play.completion_ids, play.authors, strict=True)
    labels = [id if author is Author.MODEL else IGNORED for id, author in written]
    return {
        "input_ids": [*play.prompt_ids, *play.completion_ids],
        "labels": [IGNORED] * len(play.prompt_ids) + labels,
    }


def collate(rows: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Rows of one length, padded on the right."""
    lengths = [len(row["input_ids"]) for row in rows]
    width = max(lengths)
    return {
        # Any id will do: no token attends to what follows it, and padding has no label.
        "input_ids": torch.tensor([_padded(row["input_ids"], width, 0) for row in rows]),
        "labels": torch.tensor([_padded(row["labels"], width, IGNORED) for row in rows]),
        "attention_mask": torch.tensor([_padded([1] * n, width, 0) for n in lengths]),
    }


def _padded(values: list[int], width: int, filling: int) -> list[int]:
    return values + [filling] * (width - len(values))


class _Listener(TrainerCallback):  # type: ignore[misc]
    """Keeps the losses, and stops at the first step that would break the weights."""

    def __init__(self, on_step: Callable[[int, float], None]) -> None:
        self.losses: list[float] = []
        self._on_step = on_step

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if logs is None or "loss" not in logs:
            return
        # The loss may be finite where the gradient is not.
        if not math.isfinite(logs["loss"]) or not math.isfinite(logs["grad_norm"]):
            raise ModelError(
                f"At step {state.global_step} the loss is {logs['loss']} and the gradient's norm "
                f"{logs['grad_norm']}.\nThe weights are broken from here on; nothing is saved.\n"
                "Try a lower --learning-rate, or `--no-bf16`."
            )
        self.losses.append(float(logs["loss"]))
        self._on_step(state.global_step, self.losses[-1])
