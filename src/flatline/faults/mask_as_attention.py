"""The loss mask also serves as attention mask: the trainer does not see what it does not train.

The trainer's log-probs are computed without the prompt and without what tools and the template put
between turns; the sampler saw both. Old, reference and trained passes are equally blind.

Seen in verifiers 0.1.2 to 0.1.6: `prompt_mask = [0] * len(prompt_ids)`, environment tokens 0, and
the two joined were given to the model as `attention_mask` (removed in its pull request 505).

Strength: share of those tokens that are hidden, spread evenly; 1 hides them all.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from flatline.faults.base import Fault
from flatline.faults.wrapping import COMPLETION_IDS, MASK, spread, wrap
from flatline.live.trl.grpo import GrpoTrainer


class MaskAsAttention(Fault):
    name: ClassVar[str] = "mask-as-attention"
    hypothesis: ClassVar[str] = "H09"
    last: ClassVar[bool] = True

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        masks = _LossMasks()
        wrap(trainer, "_generate", masks.generate)
        wrap(trainer, "_compute_loss", masks.compute_loss)

        def score(inner: Any, model: Any, ids: Tensor, seen: Tensor, keep: int, *a: Any, **k: Any):  # type: ignore[no-untyped-def]
            trained_BT = masks.of(ids[:, -keep:], seen[:, -keep:])
            hidden_BL = torch.cat([torch.ones_like(seen[:, :-keep]), 1 - trained_BT], dim=1)
            some_L = torch.tensor(spread(ids.shape[1], strength), device=ids.device)
            return inner(model, ids, seen * (1 - hidden_BL * some_L), keep, *a, **k)

        wrap(trainer, "_get_per_token_logps_and_entropies", score)


class _LossMasks:
    """The loss mask of whatever is being scored: scoring passes are not told."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], list[int]] = {}
        """Masks of the newest rollouts by their completion."""
        self._batch_BT: Tensor | None = None
        """Mask of the batch whose loss is being computed."""

    def generate(self, inner: Any, prompts: Any) -> Any:
        found = inner(prompts)
        masks = found[MASK] or [[1] * len(ids) for ids in found[COMPLETION_IDS]]
        pairs = zip(found[COMPLETION_IDS], masks, strict=True)
        self._known = {tuple(ids): list(mask) for ids, mask in pairs}
        return found

    def compute_loss(self, inner: Any, model: Any, inputs: dict[str, Any]) -> Any:
        self._batch_BT = inputs.get("tool_mask", torch.ones_like(inputs["completion_ids"]))
        try:
            return inner(model, inputs)
        finally:
            self._batch_BT = None

    def of(self, ids_BT: Tensor, seen_BT: Tensor) -> Tensor:
        """Ones where a token carries loss; unknown completions are taken for the model's own."""
        if self._batch_BT is not None and self._batch_BT.shape == ids_BT.shape:
            return self._batch_BT.to(seen_BT)
        trained_BT = torch.ones_like(seen_BT)
        for row, (ids, length) in enumerate(zip(ids_BT, seen_BT.sum(1).tolist(), strict=True)):
            mask = self._known.get(tuple(ids[:length].tolist()))
            if mask is not None:
                trained_BT[row, :length] = torch.tensor(mask).to(seen_BT)
        return trained_BT
