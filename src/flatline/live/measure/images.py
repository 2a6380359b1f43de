"""Rollouts scored with their own images, with blank ones and with those of other prompts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flatline.live.inputs import Inputs, select
from flatline.live.measure.played import Played, fixed_logps, prompt_ids
from flatline.live.protocol import Trainer
from flatline.live.records import ImageGaps


def image_gaps(trainer: Trainer, played: Played) -> ImageGaps | None:
    """How far the sampler's log-probs are from those with each choice of images; None where the
    model is shown none."""
    inputs = played.inputs
    if "pixel_values" not in inputs:
        return None
    own_BT = fixed_logps(trainer, inputs).cpu()
    pixels = inputs["pixel_values"]
    blank_BT = fixed_logps(trainer, {**inputs, "pixel_values": torch.zeros_like(pixels)}).cpu()
    trained_BT, sampler_BT = played.trained_BT, played.sampler_BT
    seen = float((blank_BT - own_BT).abs()[trained_BT].mean())
    if sampler_BT is None:
        return ImageGaps(seen=seen, own=None, others=())
    gaps = [_gap(sampler_BT, own_BT, trained_BT)]
    for order in _exchanges(played):
        other_BT = fixed_logps(trainer, _with_images_of(inputs, order)).cpu()
        gaps.append(_gap(sampler_BT, other_BT, trained_BT))
    return ImageGaps(seen=seen, own=gaps[0], others=tuple(gaps[1:]))


def _gap(sampler_BT: Tensor, found_BT: Tensor, trained_BT: Tensor) -> float:
    return float((sampler_BT.cpu() - found_BT).abs()[trained_BT].nanmean())


def _exchanges(played: Played) -> list[list[int]]:
    """For each row one of another prompt, prompt by prompt further on; none where images of two
    prompts have another size, since their places in the text would not fit."""
    sizes = played.inputs.get("image_grid_thw")
    names = prompt_ids(played)
    first = [names.index(name) for name in dict.fromkeys(names)]
    rows_of = [[row for row, other in enumerate(names) if other == names[at]] for at in first]
    alike = sizes is None or (len(sizes) == len(names) and bool((sizes == sizes[0]).all()))
    if not alike or len(first) < 2:
        return []
    return [_further(names, rows_of, by) for by in range(1, len(first))]


def _further(names: Sequence[str], rows_of: Sequence[Sequence[int]], by: int) -> list[int]:
    order = [0] * len(names)
    for at, rows in enumerate(rows_of):
        for row in rows:
            order[row] = rows_of[(at + by) % len(rows_of)][0]
    return order


def _with_images_of(inputs: Inputs, order: Sequence[int]) -> Inputs:
    """The same rows with the images of others."""
    moved = select(inputs, order)
    shown = {name for name in inputs if "pixel" in name or name.startswith("image_")}
    return {name: moved[name] if name in shown else value for name, value in inputs.items()}
