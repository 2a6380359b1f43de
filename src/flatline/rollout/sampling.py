"""Draws tokens and says how likely they were, under the distribution really drawn from.

The filters apply in the order of Hugging Face `generate`: temperature, top-k, top-p, min-p, each on
what the one before left. (vLLM applies min-p before top-k and top-p; the two differ only where
min-p and one of the others are both on.) The log-prob is that of the filtered, renormalised
distribution. A trainer whose log-probs ignore the filters will disagree with it; that is the truth,
and worth seeing.

Temperature 0 takes the most likely token. There is no distribution to speak of then, so the
log-prob is that of the untempered, unfiltered softmax.

Random numbers come from a counter-based stream that is keyed by (seed, problem, sample) and read at
the number of tokens sampled so far. A rollout thus draws the same numbers alone and in any batch.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flatline.errors import ConfigError

COLDEST = 1e-30
"""The lowest temperature above 0: logits of 100 million divided by it are still 32-bit floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the most likely tokens that together reach this probability; 1 keeps all."""
    top_k: int = 0
    """Keep this many of the most likely tokens, and any that tie with the last; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most likely one's probability; 0 keeps all."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature {self.temperature} must be 0 (greedy) or more.")
        if 0 < self.temperature < COLDEST:
            raise ConfigError(
                f"--temperature {self.temperature} must be 0 (greedy), or at least {COLDEST:g}: "
                "logits divided by less are no numbers."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p {self.top_p} must be above 0 and at most 1 (off).")
        if self.top_k < 0:
            raise ConfigError(f"--top-k {self.top_k} must be 0 (off) or more.")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"--min-p {self.min_p} must be between 0 (off) and 1.")


def sample(logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row by inverse CDF at the given uniforms, and its log-prob in fp32."""
    if sampling.temperature == 0:
        logps_BV = torch.log_softmax(logits_BV.float(), dim=-1)
        ids_B = logits_BV.argmax(dim=-1)
    else:
        logps_BV = filtered_logprobs(logits_BV, sampling)
        ids_B = _invert_cdf(logps_BV, uniforms_B)
    return ids_B, logps_BV.gather(1, ids_B[:, None])[:, 0]


def filtered_logprobs(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Log-probs of the distribution that is sampled from; filtered tokens are at -inf."""
    logits_BV = logits_BV.float() / sampling.temperature
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        kth_B1 = logits_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)
    if sampling.top_p < 1:
        sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
        probs_BV = sorted_BV.softmax(dim=-1)
        # A token goes when the likelier ones already reach top_p, so the first always stays.
        drop_BV = probs_BV.cumsum(dim=-1, dtype=torch.float64) - probs_BV >= sampling.top_p
        drop_BV[:, 0] = False
        logits_BV = logits_BV.masked_fill(drop_BV.scatter(1, order_BV, drop_BV), -torch.inf)
    if sampling.min_p > 0:
        floor_B1 = logits_BV.amax(dim=-1, keepdim=True) + np.log(sampling.min_p)
        logits_BV = logits_BV.masked_fill(logits_BV < floor_B1, -torch.inf)
    return torch.log_softmax(logits_BV, dim=-1)


def uniforms(seed: int, problem_id: str, sample: int, n: int) -> np.ndarray:
    """The first `n` numbers in [0, 1) of this rollout's stream. A longer call starts the same."""
    name = f"{seed}\0{problem_id}\0{sample}".encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key)).random(n)


def _invert_cdf(logps_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    # A sum of 150,000 small fp32 numbers drifts by more than the small ones are worth.
    cdf_BV = logps_BV.exp().cumsum(dim=-1, dtype=torch.float64)
    total_B = cdf_BV[:, -1]
    # The first token whose CDF exceeds the target has added something to it, hence its probability
    # is above zero. A target just under the total keeps that true for u close to 1.
    below_B = torch.nextafter(total_B, torch.zeros_like(total_B))
    target_B = torch.minimum(uniforms_B.double() * total_B, below_B)
    ids_B1: Tensor = torch.searchsorted(cdf_BV, target_B[:, None], right=True)
    # Logits that are no numbers are found beyond the last token; the caller sees their log-prob.
    return ids_B1[:, 0].clamp(max=logps_BV.shape[-1] - 1)
