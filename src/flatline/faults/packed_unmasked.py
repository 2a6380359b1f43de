"""Rollouts are scored several in one row, and nothing marks where one ends and the next begins.

A row without padding saves passes, but every token attends to all that comes before it: to the
prompts and answers of its neighbours, at positions that go on counting. Seen in open-instruct
(issue 669) and wherever a backend ignores the lengths that it is given
(unsloth-zoo pull request 840).

Strength: share of the borders that are lost. At 0 the rollouts are packed as they should be, with
positions that begin again, from which transformers makes a mask by blocks: the healthy twin.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flatline.faults.base import Fault
from flatline.faults.wrapping import spread, wrap
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer

ROLLOUTS = 4
"""Rollouts of a row."""


class PackedUnmasked(Fault):
    name: ClassVar[str] = "packed-unmasked"
    hypothesis: ClassVar[str] = "H61"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def score(inner: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            with swapped(model, forward=partial(_packed, model.forward, strength)):
                return inner(model, *args, **kwargs)

        wrap(trainer, "_get_per_token_logps_and_entropies", score)


def _packed(
    forward: Any,
    lost: float,
    *,
    input_ids: Tensor,
    attention_mask: Tensor,
    labels: Tensor,
    **asked: Any,
) -> SimpleNamespace:
    """What a pass over a padded batch gives, out of rows without padding."""
    parts = (torch.split(one, ROLLOUTS) for one in (input_ids, attention_mask.bool(), labels))
    found = [
        _row(forward, lost, ids, seen, wanted, asked)
        for ids, seen, wanted in zip(*parts, strict=True)
    ]
    log_probs, entropy = map(torch.cat, zip(*found, strict=True))
    return SimpleNamespace(log_probs=log_probs, entropy=entropy)


def _row(
    forward: Any, lost: float, ids_BL: Tensor, seen_BL: Tensor, labels_BL: Tensor, asked: Any
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of some rollouts that share a row."""
    positions_N = _positions(seen_BL.sum(1).tolist(), lost).to(ids_BL.device)
    out = forward(
        input_ids=ids_BL[seen_BL][None],
        position_ids=positions_N[None],
        labels=labels_BL[seen_BL][None],
        use_cache=False,
        **asked,
    )
    return _unpacked(out.log_probs[0], seen_BL), _unpacked(out.entropy[0], seen_BL)


def _positions(lengths: list[int], lost: float) -> Tensor:
    """Counted from the start of each rollout, or on from the rollout before where that is lost."""
    parts: list[Tensor] = []
    for length, on in zip(lengths, [False, *spread(len(lengths) - 1, lost)], strict=True):
        first = int(parts[-1][-1]) + 1 if on else 0
        parts.append(torch.arange(first, first + length))
    return torch.cat(parts)


def _unpacked(values_N: Tensor, seen_BL: Tensor) -> Tensor:
    """Back in the columns that the tokens came from, but for the first, which nothing predicts."""
    first = values_N.new_zeros(1)
    whole_BL = values_N.new_zeros(seen_BL.shape)
    return whole_BL.masked_scatter(seen_BL, torch.cat([first, values_N]))[:, 1:]
