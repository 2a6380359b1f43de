"""One batch as it was played, and how it is scored: what every measurement begins with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatline.live.batch import Drawn, Padded, episode
from flatline.live.inputs import Inputs, rows_of, select, trimmed
from flatline.live.protocol import Trainer
from flatline.live.records import Batch, Floats
from flatline.rollout.record import Author
from flatline.trace import Trace


class Judged(NamedTuple):
    """What the rewards of a batch were asked for with, and what came."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    paid_BF: Tensor
    """By each function."""


class Generated(NamedTuple):
    """What `_generate` gave, before log-probs and rewards."""

    result: Any
    """Ids, masks, sampler log-probs and messages."""
    left: dict[str, Any]
    """Attributes that it left on the trainer, which a subclass may read afterwards."""
    prompts: Sequence[Any] = ()
    """What it was asked for, of the whole batch; some trainers change these lists afterwards."""

    def part(self, kept: Sequence[int], size: int) -> "Generated":
        """What it gave for some of the rows."""
        result = _recounted(self.result, rows_of(self.result, kept, size))
        return Generated(result, rows_of(self.left, kept, size))


def _recounted(whole: Any, part: Any) -> Any:
    """TRL up to 1.8 gives the count of all its tokens along with them, and divides losses by it:
    some of the rows have a count of their own. RLOO gives ids and messages alone."""
    if not isinstance(whole, tuple) or len(whole) < 4:
        return part
    before, now = _tokens(whole), _tokens(part)
    return tuple(
        torch.full_like(one, now)
        if isinstance(one, Tensor) and not one.dim() and int(one) == before
        else one
        for one in part
    )


def _tokens(result: tuple[Any, ...]) -> int:
    """That the model wrote."""
    completions, own = result[1:3]
    return sum(map(sum, own)) if isinstance(own, list) else sum(map(len, completions))


@dataclass(slots=True)
class Played:
    """A batch of rollouts, with the tensors that the trainer would train on."""

    rows: list[dict[str, Any]]
    """Rows of the training data, one per rollout, with what the sampler added to them."""
    inputs: Inputs
    """What a loss takes, by TRL's names; a loop says besides who wrote each token (`authors`)."""
    generated: Generated | None = None
    """What the sampler gave; None where TRL has no such step."""
    by_trained: bool = False
    """Whether the very model that is trained was heard to sample it."""
    drawn: Sequence[Drawn] = ()
    """What the sampler drew for each row; empty where it was not heard."""
    judged: Judged | None = None
    """What the reward functions were asked with; None where they were not heard."""

    batch: Padded = field(init=False)

    def __post_init__(self) -> None:
        self.batch = Padded(self.inputs)

    @property
    def mask_BT(self) -> Tensor:
        """Tokens of the completions, padding left out."""
        return torch.from_numpy(self.batch.mask)

    @property
    def trained_BT(self) -> Tensor:
        """Tokens with a loss."""
        return torch.from_numpy(self.batch.loss_mask)

    @property
    def sampler_BT(self) -> Tensor | None:
        """Log-probs when they were sampled, NaN where there is none; None without any. Those of the
        trainer, else as heard: they are no part of `inputs`, where TRL would correct with them."""
        given: Tensor | None = self.inputs.get("sampling_per_token_logps")
        if given is not None or not self.drawn:
            return given
        width = self.mask_BT.shape[1]
        logps_BT = np.stack([one.logps_at(width) for one in self.drawn])
        return None if np.isnan(logps_BT).all() else torch.from_numpy(logps_BT)

    @property
    def as_drawn_B(self) -> Tensor:
        """Rollouts that hold the ids that were drawn, as far as is known."""
        if not self.drawn:
            return torch.ones(len(self.rows), dtype=torch.bool)
        pairs = zip(self.drawn, map(np.array, self.completions), strict=True)
        return torch.tensor([one.ids_beside(ids) is ids for one, ids in pairs])

    @property
    def trained_B(self) -> Tensor:
        """Rollouts with a loss: those that were cut may be left out of it on purpose, and what the
        trainer computes for them is not used."""
        return self.trained_BT.any(1)

    @property
    def advantage_BT(self) -> Tensor:
        """Of every token."""
        return torch.from_numpy(self.batch.token_advantage.astype(np.float64))

    @property
    def advantage_R(self) -> Floats:
        """Of each rollout."""
        return self.batch.advantage.astype(np.float64)

    @property
    def author_BT(self) -> Tensor:
        """Who wrote each token; a tool where that is not known."""
        authors_BT = torch.full(self.mask_BT.shape, int(Author.TOOL))
        for i, row in enumerate(self.rows):
            where = self.batch.completion(i)
            known = self.batch.authors(i, where, episode(row))
            if known is not None:
                authors_BT[i, where] = torch.from_numpy(known).long()
        return authors_BT

    def flat(self, values_BT: Tensor) -> Floats:
        """Values of the completion tokens, rollout by rollout."""
        return np.asarray(values_BT.detach().cpu()[self.mask_BT].double().numpy())

    def part(self, rollouts: Sequence[int]) -> "Played":
        """Some of the rollouts, in the given order and without padding that none of them needs;
        those that do not exist are left out."""
        kept = [i for i in rollouts if i < len(self.rows)]
        generated = self.generated and self.generated.part(kept, len(self.rows))
        inputs = trimmed(select(self.inputs, kept))
        drawn = [self.drawn[i] for i in kept] if self.drawn else ()
        return Played([self.rows[i] for i in kept], inputs, generated, self.by_trained, drawn)

    @property
    def completions(self) -> list[tuple[int, ...]]:
        """The token ids of each completion."""
        ids_BT = self.inputs["completion_ids"].cpu()
        return [tuple(ids[kept].tolist()) for ids, kept in zip(ids_BT, self.mask_BT, strict=True)]


class Recorded(NamedTuple):
    """One batch, sampled and passed through the loss as in training."""

    played: Played
    logps_BT: Tensor
    """The trainer's log-probs of it."""
    trace: Trace
    in_force: dict[str, Any]
    """Sampling and limits while it was sampled; empty where the engine is not ours."""


def fixed_logps(trainer: Trainer, inputs: Inputs, size: int | None = None) -> Tensor:
    """The same without dropout: two calls of one size differ only by what was changed between."""
    with without_dropout(trainer):
        return trainer.logps(inputs, size)


@contextmanager
def without_dropout(trainer: Trainer) -> Iterator[None]:
    """TRL asks the outermost module whether it trains; only the layers inside drop anything."""
    flags = [(module, module.training) for module in trainer.model.modules()]
    trainer.model.eval()
    trainer.model.training = True
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def batch_of(played: Played, trainer_BT: Tensor, group: int) -> Batch:
    """The batch as plain numbers."""
    rollout_T, position_T = played.batch.mask.nonzero()
    sampler_BT = played.sampler_BT
    return Batch(
        prompt_id_R=np.array(prompt_ids(played), dtype=object),
        group_R=np.arange(len(played.rows)) // group,
        advantage_R=played.advantage_R,
        rollout_T=rollout_T,
        position_T=position_T,
        ids_T=played.flat(played.inputs["completion_ids"]).astype(np.int64),
        author_T=played.flat(played.author_BT).astype(np.int64),
        trained_T=played.flat(played.trained_BT).astype(bool),
        sampler_T=None if sampler_BT is None else played.flat(sampler_BT),
        trainer_T=played.flat(trainer_BT),
    )


def prompt_ids(played: Played) -> list[str]:
    """Name of each rollout's prompt."""
    return [played.batch.prompt_name(i, row) for i, row in enumerate(played.rows)]
