"""Metrics under the seeds' names, through the trainer's own log and hence its `report_to`.

    debug/advantage_max, debug/advantage_mean    of the absolute advantages of a batch
    debug/reward_std            std inside a group, averaged over groups (TRL's `reward_std` is over
                                the whole batch and cannot tell dead groups from live ones)
    debug/context_length_mean   tokens of a finished episode, prompt included
    debug/context_truncation_rate   share of episodes whose context met its limit
    debug/ratio_off_max         largest |ratio - 1| of trained tokens; 0 on the first pass
    debug/logprob_gap_max, debug/logprob_gap_mean   |sampler - trainer| log-prob of trained tokens
    lora/NAME_mean, _std, _grad_norm             of every adapter weight; gradients after clipping,
                                                 0 where a weight has none, as a frozen one
    time/sampling, time/scoring, time/backward   seconds of one optimizer step

W&B and TensorBoard show them below `train/`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from flatline.rollout.record import Rollout
from flatline.training.rollouts import context_was_cut


def advantage_metrics(advantages: Sequence[float]) -> dict[str, float]:
    size = [abs(value) for value in advantages]
    return {
        "debug/advantage_max": max(size),
        "debug/advantage_mean": sum(size) / len(size),
    }


def within_group_std(rewards_B: Tensor, group_size: int) -> float:
    """Sample std of each group, averaged; a reward that is missing is left out."""
    groups = rewards_B.view(-1, group_size).unbind()
    spreads = [float(group[~group.isnan()].std()) for group in groups]
    known = [spread for spread in spreads if spread == spread]
    return sum(known) / len(known) if known else float("nan")


def context_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    lengths = [len(r.prompt_ids) + len(r.completion_ids) for r in rollouts]
    cut = [context_was_cut(r) for r in rollouts]
    return {
        "debug/context_length_mean": sum(lengths) / len(lengths),
        "debug/context_truncation_rate": sum(cut) / len(cut),
    }


def logprob_gap(sampler_BT: Tensor, trainer_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """How far the trainer's log-probs are from the sampler's, on the tokens that are trained."""
    gap = (sampler_BT - trainer_BT).abs()[mask_BT.bool()]
    if not gap.numel():
        return {}
    return {
        "debug/logprob_gap_max": float(gap.max()),
        "debug/logprob_gap_mean": float(gap.mean()),
    }


def ratio_metrics(new_BT: Tensor, old_BT: Tensor | None, mask_BT: Tensor) -> dict[str, float]:
    """How far the policy has moved from the one that sampled; TRL takes 0 where it has no old."""
    if old_BT is None:
        return {"debug/ratio_off_max": 0.0}
    off = ((new_BT - old_BT).exp() - 1).abs()[mask_BT.bool()]
    return {"debug/ratio_off_max": float(off.max())} if off.numel() else {}


def lora_metrics(model: Any) -> dict[str, float]:
    """Mean, std and gradient norm of every adapter weight."""
    found: dict[str, float] = {}
    for name, parameter in _adapter_weights(model):
        values = parameter.detach().float()
        found[f"lora/{name}_mean"] = float(values.mean())
        found[f"lora/{name}_std"] = float(values.std())
        gradient = parameter.grad
        found[f"lora/{name}_grad_norm"] = (
            0.0 if gradient is None else float(gradient.float().norm())
        )
    return found


def _adapter_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The frozen ones too, but for `ref`, TRL's copy of an adapter that training starts from."""
    for name, parameter in model.named_parameters():
        if "lora_" in name and "ref" not in name.split(".") and parameter.numel():
            yield name.replace("base_model.model.", "").removesuffix(".default.weight"), parameter


class LoraMetrics(TrainerCallback):  # type: ignore[misc]
    """Reads the adapters between the backward pass and the step, the only time gradients exist."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # `global_step` counts finished steps.
        if (state.global_step + 1) % args.logging_steps and state.global_step:
            return
        with torch.no_grad():
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            for name, value in lora_metrics(model).items():
                self._trainer.note(name, value)
