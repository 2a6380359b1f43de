"""One batch as it was played, and how it is scored: what every measurement begins with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatline.live.inputs import Inputs, select, trimmed
from flatline.live.protocol import Trainer
from flatline.live.records import Batch, Floats
from flatline.live.trl.recorder.batch import mean_advantage
from flatline.live.trl.recorder.rows import prompt_name
from flatline.rollout.record import Author, Rollout
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.trl.measure.scoring import Generated
    from flatline.live.trl.sampler import Drawn


@dataclass(slots=True)
class Played:
    """A batch of rollouts, with the tensors that the trainer would train on."""

    rows: list[dict[str, Any]]
    """Rows of the training data, one per rollout, with what the sampler added to them."""
    inputs: Inputs
    """What a loss takes, by TRL's names; a loop says besides who wrote each token (`authors`)."""
    generated: "Generated | None" = None
    """What the sampler gave; None where TRL has no such step."""
    drawn: "Sequence[Drawn]" = ()
    """What transformers' `generate` drew for each row; empty where it did not, or was not heard."""

    @property
    def mask_BT(self) -> Tensor:
        """Tokens of the completions, padding left out."""
        mask: Tensor = self.inputs["completion_mask"].bool().cpu()
        return mask

    @property
    def trained_BT(self) -> Tensor:
        """Tokens with a loss."""
        tool_BT = self.inputs.get("tool_mask")
        return self.mask_BT if tool_BT is None else self.mask_BT & tool_BT.bool().cpu()

    @property
    def sampler_BT(self) -> Tensor | None:
        """Log-probs when they were sampled, NaN where there is none; None without any. Those of the
        trainer, else as heard: they are no part of `inputs`, where TRL would correct with them."""
        given: Tensor | None = self.inputs.get("sampling_per_token_logps")
        if given is not None or not self.drawn:
            return given
        width = self.mask_BT.shape[1]
        return torch.from_numpy(np.stack([one.logps_at(width) for one in self.drawn]))

    @property
    def trained_B(self) -> Tensor:
        """Rollouts with a loss: those that were cut may be left out of it on purpose, and what the
        trainer computes for them is not used."""
        return self.trained_BT.any(1)

    @property
    def advantage_BT(self) -> Tensor:
        """Of every token."""
        given: Tensor = self.inputs["advantages"].detach().cpu().double()
        wide = given if given.dim() > 1 else given[:, None]
        return wide.expand(self.mask_BT.shape)

    @property
    def advantage_R(self) -> Floats:
        """Of each rollout, as the recorder takes it."""
        given = self.inputs["advantages"].detach().cpu().double()
        return mean_advantage(given.numpy(), self.trained_BT.numpy())

    @property
    def author_BT(self) -> Tensor:
        """Who wrote each token: as told, by the record of the rollout, or by the tool mask."""
        told_BT: Tensor | None = self.inputs.get("authors")
        if told_BT is not None:
            return told_BT.cpu()
        known_BT = self.inputs.get("tool_mask")
        tool_BT = self.mask_BT if known_BT is None else known_BT.cpu()
        authors_BT = torch.where(tool_BT.bool(), int(Author.MODEL), int(Author.TOOL))
        for i, row in enumerate(self.rows):
            known = row["rollout"].authors if isinstance(row.get("rollout"), Rollout) else []
            if len(known) == int(self.mask_BT[i].sum()):
                authors_BT[i, : len(known)] = torch.tensor([int(author) for author in known])
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
        return Played([self.rows[i] for i in kept], inputs, generated, drawn)

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


def batch_of(group: int, played: Played, trainer_BT: Tensor) -> Batch:
    """The batch as plain numbers."""
    rows_BT, at_BT = np.indices(played.mask_BT.shape)
    mask = played.mask_BT.numpy()
    sampler_BT = played.sampler_BT
    return Batch(
        prompt_id_R=np.array(prompt_ids(played), dtype=object),
        group_R=np.arange(len(played.rows)) // group,
        advantage_R=played.advantage_R,
        rollout_T=rows_BT[mask],
        position_T=at_BT[mask],
        ids_T=played.flat(played.inputs["completion_ids"]).astype(np.int64),
        author_T=played.flat(played.author_BT).astype(np.int64),
        trained_T=played.flat(played.trained_BT).astype(bool),
        sampler_T=None if sampler_BT is None else played.flat(sampler_BT),
        trainer_T=played.flat(trainer_BT),
    )


def prompt_ids(played: Played) -> list[str]:
    """Name of each rollout's prompt: the data's own, else a hash of its tokens."""
    prompts = zip(played.inputs["prompt_ids"], played.inputs["prompt_mask"], strict=True)
    tokens = [ids[mask.bool()].cpu().numpy() for ids, mask in prompts]
    return [prompt_name(row, ids) for row, ids in zip(played.rows, tokens, strict=True)]
