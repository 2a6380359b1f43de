"""A row is scored in shards along its tokens, and a shard does not see the shards before it.

Context parallelism cuts long rows into parts that are scored on different devices and must exchange
keys and values. Where the attention that is in use does not do so (another kernel than the one that
was patched, a mask that it drops), every shard is scored as if the row began there. Seen as losses
that depend on the number of shards (verl issue 2857); what hooks of context parallelism do to masks
is in accelerate pull request 4177.

Strength: share of the borders at which nothing is exchanged. At 0 every shard has the keys of those
before it: the healthy twin.
"""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import DynamicCache

from flatline.faults.base import Fault
from flatline.faults.wrapping import spread, wrap
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer

SHARDS = 4
"""Parts of a row."""


class ShardsApart(Fault):
    name: ClassVar[str] = "shards-apart"
    hypothesis: ClassVar[str] = "H64"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        lost = [False, *spread(SHARDS - 1, strength)]

        def score(inner: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            with swapped(model, forward=partial(_sharded, model.forward, lost)):
                return inner(model, *args, **kwargs)

        wrap(trainer, "_get_per_token_logps_and_entropies", score)


def _sharded(
    forward: Any,
    lost: Sequence[bool],
    *,
    input_ids: Tensor,
    attention_mask: Tensor,
    labels: Tensor,
    **asked: Any,
) -> SimpleNamespace:
    """What a pass over whole rows gives, out of one pass for every shard."""
    columns = input_ids.shape[1]
    ends = [columns * (shard + 1) // SHARDS for shard in range(SHARDS)]
    positions_BL = (attention_mask.cumsum(1) - 1).clamp(min=0)
    cache, begun, start, found = DynamicCache(), 0, 0, []
    for end, alone in zip(ends, lost, strict=True):
        if alone:
            cache, begun = DynamicCache(), start
        # The first token of the next shard is there to be predicted, and is forgotten again.
        shard = slice(start, min(end + 1, columns))
        out = forward(
            input_ids=input_ids[:, shard],
            attention_mask=attention_mask[:, begun : shard.stop],
            position_ids=positions_BL[:, shard],
            labels=labels[:, shard],
            past_key_values=cache,
            use_cache=True,
            **asked,
        )
        if end < columns:
            cache.crop(-1)
        found.append((out.log_probs, out.entropy))
        start = end
    log_probs, entropy = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return SimpleNamespace(log_probs=log_probs, entropy=entropy)
