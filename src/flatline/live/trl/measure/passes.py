"""Measurements that score the batch again: twice, alone, against the reference."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.records import (
    AloneVsBatch,
    Batch,
    ReferenceGap,
    ScoredTwice,
)
from flatline.live.trl.inputs import Inputs, select, trimmed
from flatline.live.trl.measure.moving import Move, moved
from flatline.live.trl.measure.scoring import (
    Played,
    fixed_logps,
    score_again,
    scoring_logps,
    trained_logps,
    without_dropout,
)
from flatline.live.trl.settings import dropout


def scored_twice(trainer: Any, played: Played, move: Move) -> ScoredTwice:
    """Both kinds of pass, twice each, with the weights as they are and moved."""
    trained, scoring = _twice(trainer, played)
    with moved(trainer, move.amount):
        moved_trained, moved_scoring = _twice(trainer, played)
    return ScoredTwice(
        trained=trained,
        scoring=scoring,
        moved_trained=moved_trained,
        moved_scoring=moved_scoring,
        dropout=dropout(trainer),
    )


def _twice(trainer: Any, played: Played) -> tuple[float, float]:
    trainer.model.train()
    first, second = (trained_logps(trainer, played.inputs) for _ in range(2))
    third, fourth = (scoring_logps(trainer, played.inputs) for _ in range(2))
    where_BT = played.trained_BT
    return _largest(first, second, where_BT), _largest(third, fourth, where_BT)


def no_dropout(trainer: Any) -> None:
    """Take it out of all that `dropout` looks at, for passes in training mode."""
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def alone_vs_batch(trainer: Any, played: Played, before_BT: Tensor, n: int) -> AloneVsBatch:
    """The rollouts with the most padding, each by itself without any."""
    padding_B = (~played.mask_BT).sum(1) + (played.inputs["prompt_mask"] == 0).sum(1).cpu()
    padded_first = padding_B.argsort(descending=True).tolist()
    chosen = [i for i in padded_first if bool(played.trained_B[i])][:n]
    differences = []
    for i in chosen:
        after_T = fixed_logps(trainer, trimmed(select(played.inputs, [i])))[0]
        width = len(after_T)
        trained_T = played.trained_BT[i, :width]
        differences.append(_largest(after_T, before_BT[i, :width], trained_T))
    return AloneVsBatch(
        rollouts=np.array(chosen, dtype=np.int64),
        padding=padding_B[chosen].numpy(),
        difference=np.array(differences, dtype=np.float64),
    )


def reference_gap(
    trainer: Any,
    played: Played,
    batch: Batch,
    before_BT: Tensor,
    moving: tuple[Move, Played] | None,
) -> ReferenceGap | None:
    """Policy minus reference; None where nothing could be the reference. `moving` says how far the
    adapters are moved, and for which rollouts the gap is then measured again."""
    own_BT = played.inputs.get("ref_per_token_logps")
    lora = has_adapters(trainer)
    if own_BT is None and not lora:
        return None
    reference_BT = own_BT if own_BT is not None else reference_logps(trainer, played.inputs)
    kept = batch.trained_T
    return ReferenceGap(
        source="trainer" if own_BT is not None else "adapter off",
        rollout_T=batch.rollout_T[kept],
        position_T=batch.position_T[kept],
        ids_T=batch.ids_T[kept],
        gap_T=played.flat(before_BT - reference_BT)[kept],
        untrained=lora_untrained(trainer.model) if lora else None,
        moved_gap=None if moving is None else _moved_gap(trainer, *moving),
    )


def has_adapters(trainer: Any) -> bool:
    """Whether the model is a PEFT model, whose base can be the reference."""
    return hasattr(trainer.model, "peft_config")


def reference_logps(trainer: Any, inputs: Inputs) -> Tensor:
    """The adapter switched off, or the adapter that TRL keeps as reference, as TRL does it."""
    from trl.trainer.utils import use_adapter

    model = trainer.accelerator.unwrap_model(trainer.model)
    name = "ref" if "ref" in model.peft_config else None
    with use_adapter(model, adapter_name=name), without_dropout(trainer):
        return scoring_logps(trainer, inputs)


def lora_untrained(model: Any) -> bool:
    """Whether every B is still zero, so that the adapters change nothing."""
    halves = [p for n, p in model.named_parameters() if "lora_B" in n or "lora_embedding_B" in n]
    return bool(halves) and not any(bool(half.any()) for half in halves)


def _moved_gap(trainer: Any, move: Move, some: Played) -> float:
    """Both are scored in the same shapes: what moves along is then the same, bit by bit."""
    with moved(trainer, move.amount):
        if "ref_per_token_logps" in some.inputs:
            some = Played(some.rows, score_again(trainer, some))
            reference_BT = some.inputs["ref_per_token_logps"]
        else:
            reference_BT = reference_logps(trainer, some.inputs)
        policy_BT = fixed_logps(trainer, some.inputs)
    return float((policy_BT - reference_BT).abs().cpu()[some.trained_BT].mean())


def _largest(a: Tensor, b: Tensor, where: Tensor) -> float:
    values = (a - b).abs().cpu()[where]
    return float(values.max()) if values.numel() else float("nan")
