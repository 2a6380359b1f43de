"""Advantages beside those of the rewards that arrived, by the baseline and scale asked for."""

from dataclasses import replace

import torch
from torch import Tensor

from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.spec import Asked, NotSpecified
from flatline.spec.advantages import advantages, beyond_rounding
from flatline.spec.numerics import ADVANTAGE
from flatline.spec.rewards import total

SHOWN = 8
"""Numbers of an example that are shown."""


def judge_advantages(
    asked: Asked,
    arrived_BF: Tensor | None,
    found: Tensor,
    kl_B: Tensor | None = None,
    limit: float = ADVANTAGE,
) -> StageFound:
    """Is each row's advantage that of its rewards, by the baseline and scale asked for? `kl_B` is
    each row's KL, where that is in the reward."""
    if arrived_BF is None:
        return unknown("advantages", "The trainer computes no rewards where TRL does.")
    if found.dim() != 1:
        return unknown("advantages", "Not specified: an advantage for each token.")
    try:
        expected_B = torch.from_numpy(advantages(asked, arrived_BF, kl_B))
    except NotSpecified as missing:
        return unknown("advantages", f"Not specified: {missing}.")
    found_B = found.detach().double().cpu()
    reward_B = torch.from_numpy(total(asked, arrived_BF))
    off_B = torch.from_numpy(beyond_rounding(asked, arrived_BF.double().cpu(), found_B, expected_B))
    worst = float(off_B.max())
    if worst <= limit:
        return same("advantages", f"All {len(found_B)} are as specified.", worst, limit)
    at = int(off_B.argmax()) // asked.group * asked.group
    group = slice(at, at + asked.group)
    return departs(
        "advantages",
        f"{int((off_B > limit).sum())} of {len(found_B)} advantages are not those of their "
        f"rewards ({_formula(asked)}).{_instead(asked, arrived_BF, kl_B, found_B, limit)}",
        f"group of rows {at} to {at + asked.group - 1}: rewards {numbers(reward_B[group])}, "
        f"{f'KL {numbers(kl_B[group])}, ' if asked.beta and kl_B is not None else ''}"
        f"expected {numbers(expected_B[group])}, found {numbers(found_B[group])}",
        measured=worst,
        limit=limit,
    )


def _formula(asked: Asked) -> str:
    """How advantages are made, in words."""
    whose = "the group" if asked.baseline == "group" else "the others of the group"
    less = f"; less {asked.beta:g} times the KL" if asked.beta and asked.kl_place != "loss" else ""
    return f"baseline: {whose}; scale: {asked.scale}{less}"


def _instead(
    asked: Asked, paid_BF: Tensor, kl_B: Tensor | None, found_B: Tensor, limit: float
) -> str:
    """What else, had it been asked for, would give what was found, in words; empty for nothing."""
    others = {
        "without the KL in the reward": replace(asked, beta=0.0),
        "with a KL of the wrong sign": replace(asked, beta=-asked.beta),
        "with the mean of the whole group as baseline": replace(asked, baseline="group"),
        "with the mean of the others as baseline": replace(asked, baseline="others"),
        "without a scale": replace(asked, scale="none"),
        "scaled by the group": replace(asked, scale="group"),
        "scaled by the batch": replace(asked, scale="batch"),
    }
    for words, changed in others.items():
        expected_B = torch.from_numpy(advantages(changed, paid_BF, kl_B))
        if float(((found_B - expected_B).abs() / (1 + expected_B.abs())).max()) <= limit:
            return f" They are what would come {words}."
    return ""


def numbers(values: Tensor) -> str:
    """The first few, for an example."""
    shown = ", ".join(f"{float(value):.3f}" for value in values[:SHOWN])
    return f"[{shown}{', ...' if len(values) > SHOWN else ''}]"
