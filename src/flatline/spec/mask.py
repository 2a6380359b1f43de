"""Which tokens carry a loss: those that the model wrote, the stop token among them.

What a tool or an environment put between them was not sampled and has no gradient. With
`mask_truncated_completions` (DAPO, Yu et al., 2025, section 3.4, overlong filtering) a completion
that was cut carries none at all.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flatline.spec.asked import Asked


def loss_mask(asked: Asked, length: int, own: Sequence[int] | None, cut: bool) -> Tensor:
    """One completion's mask; `own` is 1 where the model wrote, None where it wrote everything."""
    mask_T = torch.ones(length, dtype=torch.bool)
    if own is not None:
        mask_T = torch.tensor(list(own), dtype=torch.bool)
    return mask_T & ~torch.tensor(cut and asked.mask_cut)
