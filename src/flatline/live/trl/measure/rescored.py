"""Rollouts scored row by row, with nothing of TRL: with one adapter after the other, and beside
the entropy of the policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live.measure.played import Played
from flatline.live.records import AdapterGaps, Surprise
from flatline.live.trl.departure.scored import Row, Scorer
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.where.package import part_of_trl
from flatline.spec.prompts import without_padding

BASE = "none"
"""The model under its adapters."""
ROWS = 64
"""Rollouts whose tokens are held against the entropy, at most."""


def adapter_gaps(trainer: GrpoTrainer, played: Played, logps_BT: Tensor) -> AdapterGaps:
    """How far the sampler's and the trainer's log-probs are from those with each adapter."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    names = list(getattr(model, "peft_config", ()))
    if len(names) < 2:
        return AdapterGaps(trained=(), sampler={}, scorer={})
    trained = tuple(name for name in names if _is_trained(model, name))
    sampler_BT = played.sampler_BT
    gaps: dict[str, dict[str, float]] = {"sampler": {}, "scorer": {}}
    for name in (*names, BASE):
        with _with_adapter(model, name):
            found_BT = _scored(trainer, played)
        for who, given_BT in (("sampler", sampler_BT), ("scorer", logps_BT)):
            if given_BT is not None:
                apart_BT = (given_BT.to(found_BT) - found_BT).abs()
                gaps[who][name] = float(apart_BT[played.trained_BT].nanmean())
    return AdapterGaps(trained=trained, **gaps)


def _is_trained(model: Any, adapter: str) -> bool:
    return any(p.requires_grad for name, p in model.named_parameters() if f".{adapter}." in name)


@contextmanager
def _with_adapter(model: Any, name: str) -> Iterator[None]:
    """With one adapter, or none. PEFT makes an adapter trainable when it is set: that is undone."""
    use_adapter = part_of_trl("trainer.utils").use_adapter
    asks = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        with use_adapter(model, adapter_name=None if name == BASE else name):
            yield
    finally:
        for weight, asked in asks:
            weight.requires_grad_(asked)


def _scored(trainer: GrpoTrainer, played: Played) -> Tensor:
    """Log-probs of the completions, padded as in the batch."""
    scorer = Scorer(trainer, float(trainer.temperature))
    found_BT = torch.full(played.mask_BT.shape, torch.nan)
    for at in range(len(played.rows)):
        prompt, completion = _ids(played, at)
        row = Row(prompt, completion, torch.ones(len(completion)), cut=False)
        found_BT[at, played.mask_BT[at]] = scorer.all([row])[0].float().cpu()
    return found_BT


def surprise(trainer: GrpoTrainer, played: Played) -> Surprise:
    """Log-prob plus entropy of what was sampled, at the temperature of sampling."""
    some = played.part(range(ROWS))
    sums = [_surprise(trainer, some, at) for at in range(len(some.rows))]
    off_R, entropy_R, variance_R, apart_R = np.array(sums).T
    tokens = int(some.trained_BT.sum())
    return Surprise(
        off_R=off_R,
        entropy_R=entropy_R,
        variance_R=variance_R,
        group_R=np.arange(len(sums)) // int(trainer.num_generations),
        tokens=tokens,
        apart=float(apart_R.sum()) / max(tokens, 1),
    )


@torch.no_grad()
def _surprise(trainer: GrpoTrainer, played: Played, at: int) -> list[float]:
    """Sums over the trained tokens of one rollout."""
    prompt, completion = _ids(played, at)
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    ids_1L = torch.tensor([[*prompt, *completion]], device=next(model.parameters()).device)
    with trainer.accelerator.autocast():
        logits_LV = model(input_ids=ids_1L, use_cache=False).logits[0]
    told_TV = logits_LV[len(prompt) - 1 : -1].float() / float(trainer.temperature)
    every_TV = torch.log_softmax(told_TV, -1)
    probs_TV = every_TV.exp()
    entropy_T = -(probs_TV * every_TV).sum(-1)
    variance_T = (probs_TV * (every_TV + entropy_T[:, None]) ** 2).sum(-1)
    logps_T = every_TV.gather(1, ids_1L[0, len(prompt) :, None])[:, 0]
    given_BT, mask_T = played.sampler_BT, played.mask_BT[at]
    given_T = logps_T if given_BT is None else given_BT[at][mask_T].to(logps_T)
    own_T = played.trained_BT[at][mask_T].to(logps_T.device)
    sums = (logps_T + entropy_T, entropy_T, variance_T, (logps_T - given_T).abs().nan_to_num())
    return [float(one_T[own_T].sum()) for one_T in sums]


def _ids(played: Played, at: int) -> tuple[list[int], list[int]]:
    """Prompt and completion of one rollout, without padding."""
    if "pixel_values" in played.inputs:  # a row by itself would be scored without its images
        raise NotRecorded("completions of text alone")
    prompt, mask = (played.inputs[name][at].cpu() for name in ("prompt_ids", "prompt_mask"))
    return without_padding(prompt, mask), list(played.completions[at])
