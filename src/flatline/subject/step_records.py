"""What measurements around one optimizer step return, besides `OneStep`: plain numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedDelivery:
    """Does the sampler follow a real optimizer step, and not only a large move?

    Means of |sampler - trainer| over the model's tokens, of rollouts that the next step plays; NaN
    where the sampler gives no log-probs.
    """

    visible: float
    """How far the step shifts the trainer's own log-probs: what there is to be seen."""
    gap_before: float
    """Sampler against trainer before the step."""
    gap_new: float
    """The next step's rollouts against the stepped weights; healthy: as before."""
    gap_old: float
    """The same rollouts against the weights before the step; a sampler that kept those has 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """The batch in one optimizer step, in as many passes as configured and in twice as many."""

    passes: tuple[int, int]
    """Backward passes of the two."""
    norms: tuple[float, float]
    """Norms of the gradients, before clipping."""
    cosine: float
    """Of the two gradients; NaN where one is 0."""

    @property
    def ratio(self) -> float:
        """Norm in twice as many passes over that in as many as configured; NaN without any."""
        return self.norms[1] / self.norms[0] if self.norms[0] else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPull:
    """The gradient a small step away from the start, split into reward and KL."""

    beta: float
    """Weight of the KL term."""
    scale: float
    """How far away, as a share of one optimizer step at the configured rate."""
    reward: float
    """Norm of the gradient without the KL term."""
    kl: float
    """Norm of what the KL term adds to it."""
    cosine: float
    """Of the two parts: below 0 they pull against each other."""

    @property
    def ratio(self) -> float:
        """The pull of the KL in units of that of the reward after one whole step, if it grows
        with the distance as it does near the start."""
        return self.kl / self.reward / self.scale if self.reward else float("nan")
