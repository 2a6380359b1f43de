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
class ShortStep:
    """The last step of an epoch, where passes are left that are not enough for a whole one."""

    passes: int
    """Of that step."""
    usual: int
    """Of the others."""
    steps: int
    """Of an epoch, this one among them."""
    ratio: float = float("nan")
    """Norm of some passes where twice as many are usual, over theirs where they are a whole step;
    NaN without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """Some rollouts in one optimizer step, in passes as configured and in twice as many."""

    passes: tuple[int, int]
    """Backward passes of the two."""
    norms: tuple[float, float]
    """Norms of the gradients, before clipping."""
    cosine: float
    """Of the two gradients; NaN where one is 0."""
    short: "ShortStep | None" = None
    """None where every step of an epoch has all of its passes."""

    @property
    def ratio(self) -> float:
        """Norm in twice as many passes over that in passes as configured; NaN without any."""
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
    further: float
    """How many times as far away the KL's part was taken again."""
    kl_further: float
    """Its norm there."""
    cosine: float
    """Of the two parts: below 0 they pull against each other."""

    @property
    def ratio(self) -> float:
        """The pull of the KL in units of that of the reward after one whole step, if it grows
        with the distance as it does near the start. The lesser of both distances: rounding makes
        too much of the shorter one, a token that became unlikely of the longer one."""
        pull = min(self.kl, self.kl_further / self.further)
        return pull / self.reward / self.scale if self.reward else float("nan")

    @property
    def growth(self) -> float:
        """What the distance makes of the pull: as much as the distance itself where it is one,
        and about 1 where it is rounding, or a part of the loss that is no KL."""
        return self.kl_further / self.kl if self.kl else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """One real step of several processes, and what they must have in common."""

    processes: int
    """How many train together."""
    prompts: tuple[tuple[tuple[str, ...], ...], ...]
    """Names of the prompts that each draws, row by row, in each of its first generations."""
    group: int
    """Completions of a prompt."""
    broken: tuple[int, ...]
    """Groups, counted over all processes, that are not one prompt."""
    misplaced: int | None
    """Rewards of the batch that arrive at another row than they were paid for; None where they
    cannot be heard."""
    advantage_off: float | None
    """Largest difference of an advantage from that of all processes' rewards, relative to 1 plus
    its size; None where it is not specified."""
    differing: tuple[str, ...] | None
    """Weights that are not the same in all processes; None before these are put in step."""
    lengths: tuple[float, ...] | None
    """Of each process's gradient, over that of the same passes in one process; None where a
    gradient cannot be looked at."""
    cosines: tuple[float, ...] | None
    """Of the two."""
    length_limit: float
    """How far rounding takes a length from 1."""
    cosine_limit: float
    """How far it takes a cosine from 1."""
