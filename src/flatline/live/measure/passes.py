"""Measurements that score the batch again: twice, alone, against the reference."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live.facts import dropout_of
from flatline.live.held import at_rest, read, totals
from flatline.live.inputs import select, trimmed
from flatline.live.measure.moving import Move, moved
from flatline.live.measure.played import Played, fixed_logps
from flatline.live.protocol import HasModel, Trainer
from flatline.live.records import (
    AloneVsBatch,
    Batch,
    BesideOthers,
    ReferenceGap,
    ScoredTwice,
)


def scored_twice(trainer: Trainer, played: Played, move: Move) -> ScoredTwice:
    """Both kinds of pass, twice each, with the weights as they are and moved."""
    trained, scoring = _twice(trainer, played)
    with moved(trainer, move.amount):
        moved_trained, moved_scoring = _twice(trainer, played)
    return ScoredTwice(
        trained=trained,
        scoring=scoring,
        moved_trained=moved_trained,
        moved_scoring=moved_scoring,
        dropout=dropout_of(trainer.model),
    )


def _twice(trainer: Trainer, played: Played) -> tuple[float, float]:
    trainer.model.train()
    first, second = (trainer.logps(played.inputs) for _ in range(2))
    third, fourth = (trainer.plain_logps(played.inputs) for _ in range(2))
    where_BT = played.trained_BT
    return _largest(first, second, where_BT), _largest(third, fourth, where_BT)


def no_dropout(trainer: HasModel) -> None:
    """Take it out of all that `dropout` looks at, for passes in training mode."""
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def alone_vs_batch(trainer: Trainer, played: Played, before_BT: Tensor, n: int) -> AloneVsBatch:
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


def beside_others(trainer: Trainer, played: Played, size: int) -> BesideOthers:
    """Every second rollout, after the one before it has its completion in another order. Where
    passes draw, nothing can be told of neighbours."""
    looked_at = torch.arange(len(played.rows)) % 2 == 1
    where_BT = played.trained_BT & looked_at[:, None]
    if size < 2 or not where_BT.any():
        return BesideOthers(rollouts=0, change=float("nan"))
    before_BT = fixed_logps(trainer, played.inputs, size)
    ids_BT = played.inputs["completion_ids"].clone()
    for i in (~looked_at).nonzero().flatten().tolist():
        ids_BT[i, played.mask_BT[i]] = ids_BT[i, played.mask_BT[i]].flip(0)
    after_BT = fixed_logps(trainer, {**played.inputs, "completion_ids": ids_BT}, size)
    change = _largest(before_BT, after_BT, where_BT)
    if change and _largest(before_BT, fixed_logps(trainer, played.inputs, size), where_BT):
        raise NotRecorded("passes that come out the same twice (see H23)")
    return BesideOthers(rollouts=int(where_BT.any(1).sum()), change=change)


def reference_gap(
    trainer: Trainer,
    played: Played,
    batch: Batch,
    before_BT: Tensor,
    moving: tuple[Move, Played] | None,
) -> ReferenceGap | None:
    """Policy minus reference; None where nothing could be the reference. `moving` says how far the
    adapters are moved, and for which rollouts the gap is then measured again."""
    own_BT = played.inputs.get("ref_per_token_logps")
    lora = has_adapters(trainer)
    if own_BT is None and not lora and not trainer.keeps_reference:
        return None
    reference_BT = own_BT if own_BT is not None else trainer.reference_logps(played)
    kept = batch.trained_T
    return ReferenceGap(
        source="adapter off" if own_BT is None and lora else "trainer",
        rollout_T=batch.rollout_T[kept],
        position_T=batch.position_T[kept],
        ids_T=batch.ids_T[kept],
        gap_T=played.flat(before_BT - reference_BT)[kept],
        untrained=lora_untrained(trainer.model) if lora else None,
        moved_gap=None if moving is None else _moved_gap(trainer, *moving),
    )


def has_adapters(trainer: Trainer) -> bool:
    """Whether the model is a PEFT model, whose base can be the reference."""
    return hasattr(trainer.model, "peft_config")


def lora_untrained(model: Any) -> bool:
    """Whether every adapter still has its half of zeros, so that it changes nothing: B of a layer,
    A of an embedding."""
    at_rest(model)
    halves = [p for n, p in model.named_parameters() if "lora_B" in n or "lora_embedding_A" in n]
    return bool(halves) and not any(totals([float(read(half).any()) for half in halves], halves))


def _moved_gap(trainer: Trainer, move: Move, some: Played) -> float:
    """Both are scored in the same shapes: what moves along is then the same, bit by bit."""
    with moved(trainer, move.amount):
        reference_BT = trainer.reference_logps(some)
        policy_BT = fixed_logps(trainer, some.inputs)
    return float((policy_BT - reference_BT).abs().cpu()[some.trained_BT].mean())


def _largest(a: Tensor, b: Tensor, where: Tensor) -> float:
    values = (a - b).abs().cpu()[where]
    return float(values.max()) if values.numel() else float("nan")
