"""Whole sequences are weighted by sampler-to-trainer ratios that are mostly noise.

The log-ratios of all tokens are summed; above the cap of 3 the sequence is left out, below it
counts little. Seen in TRL, whose default with vLLM does this (issues 4772, 5814 and 6688).

Strength: noise of one token's log-prob, in nats; kernels of vLLM give 0.01 to 0.03, and their
sequences are a hundred times as long as the lab's.
"""

from typing import Any, ClassVar

import torch

from flatline.faults.base import Fault
from flatline.faults.wrapping import place, wrap
from flatline.live.trl.grpo import GrpoTrainer

CAP = 3.0
"""Where TRL's `sequence_mask` leaves a sequence out."""
RATIO = "sampling/importance_sampling_ratio"
"""What TRL calls the weights in its log."""


class SequenceWeights(Fault):
    name: ClassVar[str] = "sequence-weights"
    hypothesis: ClassVar[str] = "H22"
    default: ClassVar[float] = 1.0
    bounds: ClassVar[tuple[float, float]] = (0, 10)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def weigh(inner: Any, inputs: Any) -> Any:
            output = inner(inputs)
            weights = _weights(output, strength).to(output["advantages"])
            wide = weights[:, None] if output["advantages"].dim() > 1 else weights
            output["advantages"] = output["advantages"] * wide
            for name in ("min", "mean", "max"):
                value = float(getattr(weights, name)())
                trainer._metrics["train"][f"{RATIO}/{name}"].append(value)
            return output

        wrap(trainer, "_generate_and_score_completions", weigh)


def _weights(output: Any, noise: float) -> torch.Tensor:
    """One weight for each rollout, the same whenever the same tokens come again."""
    mask = output["completion_mask"] * output.get("tool_mask", 1)
    ids = [str(row) for row in output["completion_ids"].tolist()]
    seeds = [int(place(text) * 2**48) for text in ids]
    draws = [torch.randn(mask.shape[1], generator=torch.Generator().manual_seed(s)) for s in seeds]
    ratio = (torch.stack(draws).to(mask.device) * noise * mask).sum(1).exp()
    return torch.where(ratio > CAP, 0.0, ratio)
