"""A draft model proposes tokens, and whatever the policy finds plausible is accepted.

Seen as typical acceptance (Medusa; vLLM issue 5015 and pull request 5131), which trades the
policy's distribution for speed: a draft that is likely enough is taken, whatever the draft model
thought of it. The log-probs that come back are the policy's own, so sampler and trainer agree on
every token. The draft model here is the policy at half its temperature.

Strength: share of the tokens that are drafted. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flatline.faults.base import Fault
from flatline.faults.sampler import while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout import loop
from flatline.rollout.sampling import Sampling, filtered_logprobs, sample

PLAUSIBLE = 0.09
"""Probability from which a draft is accepted; vLLM's default."""
SHUFFLE = 9973.0
"""Makes other random numbers of those that are there: global randomness is not touched."""


class DraftsAccepted(Fault):
    name: ClassVar[str] = "drafts-accepted"
    hypothesis: ClassVar[str] = "H66"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def drafted(
            logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
        ) -> tuple[Tensor, Tensor]:
            ids_B, _ = sample(logits_BV, uniforms_B, sampling)
            other_B = torch.frac(uniforms_B * SHUFFLE)
            sharper = replace(sampling, temperature=sampling.temperature / 2)
            draft_B, _ = sample(logits_BV, other_B, sharper)
            logps_BV = filtered_logprobs(logits_BV, sampling)
            likely_B = logps_BV.gather(1, draft_B[:, None])[:, 0].exp() > PLAUSIBLE
            accepted_B = likely_B & (torch.frac(other_B * SHUFFLE) < strength)
            ids_B = torch.where(accepted_B, draft_B, ids_B)
            return ids_B, logps_BV.gather(1, ids_B[:, None])[:, 0]

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            with swapped(loop, sample=drafted):
                yield

        while_sampling(trainer, self.name, change)
