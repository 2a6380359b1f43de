"""Plays of like length share a pass, and a pass is as wide as its longest play.

TRL pads every play of a step to the longest and deals them out at random, so that with tools, where
one play in ten is twice as long as the others, half of what a pass computes is padding. A step's
gradient is a sum over its plays, whichever pass each is in.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from flatline.live.where.package import part_of_trl

Inputs = dict[str, Any]
"""What TRL's loss takes: tensors with a row for each play, and a few numbers."""


OF_BOTH = ("token_type_ids", "mm_token_type_ids")
"""What has a number for every token of prompt and completion."""
OF_IMAGES = ("pixel_values", "image_grid_thw", "image_sizes", "spatial_shapes")
"""What has rows of images, whatever their width."""


def by_length(passes: list[Inputs]) -> list[Inputs]:
    """The same plays in as many passes as large, the longest together and first."""
    rows = [len(one["completion_ids"]) for one in passes]
    seen_BT = torch.cat([one["completion_mask"] for one in passes])
    order_B = _lengths(seen_BT).argsort(descending=True, stable=True)
    whole = {name: _joined([one[name] for one in passes], rows) for name in passes[0]}
    return [trimmed(select(whole, part.tolist())) for part in torch.split(order_B, rows)]


def select(inputs: Inputs, rows: Sequence[int]) -> Inputs:
    """The inputs of some rollouts; what is not per rollout stays. A rollout takes its images with
    it: several may stand in one row of theirs, or one in several, which TRL knows how to part."""
    size = len(inputs["completion_ids"])
    if "pixel_values" not in inputs:
        found: Inputs = rows_of(inputs, rows, size)
        return found
    trls = part_of_trl("trainer.utils")
    by_row = trls.split_pixel_values_by_grid(inputs)
    return dict(trls.unsplit_pixel_values_by_grid(rows_of(by_row, rows, size)))


def rows_of(value: Any, kept: Sequence[int], size: int) -> Any:
    """Lists and tensors with an entry for each of `size` rows, cut down to some of these; so is
    what a tuple or a dict holds."""
    if isinstance(value, tuple):
        return tuple(rows_of(one, kept, size) for one in value)
    if isinstance(value, dict):
        return {name: rows_of(one, kept, size) for name, one in value.items()}
    if isinstance(value, Tensor):
        return value[list(kept)] if value.dim() and len(value) == size else value
    return [value[row] for row in kept] if isinstance(value, list) and len(value) == size else value


def trimmed(inputs: Mapping[str, Any]) -> Inputs:
    """Without the columns in which no rollout has a token."""
    columns = inputs["completion_ids"].shape[1]
    seen = inputs["prompt_mask"].bool().any(0).nonzero()
    start = int(seen[0]) if len(seen) else 0
    written = inputs["completion_mask"].bool().any(0).nonzero()
    width = int(written[-1]) + 1 if len(written) else columns

    before = inputs["prompt_ids"].shape[1]

    def cut(name: str, value: Any) -> Any:
        if name in ("prompt_ids", "prompt_mask"):
            return value[:, start:]
        if name in OF_BOTH:
            return value[:, start : before + width]
        per_token = isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == columns
        return value[:, :width] if per_token and name not in OF_IMAGES else value

    return {name: cut(name, value) for name, value in inputs.items()}


def score_by_length(
    score: Callable[[Tensor, Tensor, int], Tensor],
    ids_BL: Tensor,
    seen_BL: Tensor,
    keep: int,
    size: int,
) -> Tensor:
    """Log-probs of the last `keep` columns, `size` rows at once; 0 behind the longest of these."""
    columns = ids_BL.shape[1]
    before = columns - keep
    lengths_B = _lengths(seen_BL).clamp(min=before + 1)
    order_B = lengths_B.argsort(descending=True, stable=True)
    found = []
    for rows in torch.split(order_B, size):
        end = int(lengths_B[rows].max())
        # From the first token on, as in a trained pass: in bf16 another width is another rounding.
        start = min(int(seen_BL[rows].any(0).int().argmax()), before - 1)
        part = slice(start, end)
        logps_BT = score(ids_BL[rows, part], seen_BL[rows, part], end - before)
        found.append(pad(logps_BT, (0, columns - end)))
    return torch.cat(found)[order_B.argsort()]


def _lengths(seen_BT: Tensor) -> Tensor:
    """Columns up to the last that is seen, row by row."""
    columns = torch.arange(1, seen_BT.shape[1] + 1, device=seen_BT.device)
    return (columns * seen_BT.bool()).amax(dim=1)


def _joined(values: list[Any], rows: list[int]) -> Any:
    """What TRL split by rows; what is not by row, every pass holds alike."""
    per_row = all(
        isinstance(value, (Tensor, list)) and getattr(value, "ndim", 1) and len(value) == count
        for value, count in zip(values, rows, strict=True)
    )
    if not per_row:
        return values[0]
    return torch.cat(values) if isinstance(values[0], Tensor) else [x for v in values for x in v]
