"""What the model said: the sampled tokens up to and with the first stop token.

A completion without a stop token was cut at the limit. What a sampler puts behind a stop token to
fill a batch is no part of it.
"""

from collections.abc import Collection, Sequence


def said(sampled: Sequence[int], stops: Collection[int]) -> list[int]:
    """One completion, of what the sampler returned for it."""
    ends = [at for at, token in enumerate(sampled) if token in stops]
    return list(sampled[: ends[0] + 1] if ends else sampled)


def was_cut(completion: Sequence[int], stops: Collection[int]) -> bool:
    """Whether it ends without a stop token."""
    return not completion or completion[-1] not in stops
