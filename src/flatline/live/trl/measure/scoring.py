"""Plays a batch and scores it, always through the trainer's own methods.

Log-probs are caught where `_compute_loss` asks for them, so whatever the trainer really does on the
way to its loss (its masks, its temperature, a subclass, a planted fault) is in them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live.hooks import Guard, Patch
from flatline.live.records import Batch, Floats
from flatline.live.trl.batch import Padded, episode
from flatline.live.trl.inputs import Inputs, rows_of, select, trimmed
from flatline.live.trl.sampler import Drawn, drawn, hearing
from flatline.live.trl.trainer import TrlTrainer, scored, scorer_of
from flatline.rollout.record import Author


class Generated(NamedTuple):
    """What `_generate` gave, before log-probs and rewards."""

    result: Any
    """Ids, masks, sampler log-probs and messages."""
    left: dict[str, Any]
    """Attributes that it left on the trainer, which a subclass may read afterwards."""

    def part(self, kept: Sequence[int], size: int) -> "Generated":
        """What it gave for some of the rows."""
        return Generated(rows_of(self.result, kept, size), rows_of(self.left, kept, size))


@dataclass(slots=True)
class Played:
    """A batch of rollouts, with the tensors that the trainer would train on."""

    rows: list[dict[str, Any]]
    """Rows of the training data, one per rollout, with what the sampler added to them."""
    inputs: Inputs
    """As `_generate_and_score_completions` returned them."""
    generated: "Generated | None" = None
    """What the sampler gave; None where TRL has no such step."""
    drawn: "Sequence[Drawn]" = ()
    """What transformers' `generate` drew for each row; empty where it did not, or was not heard."""

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
        return torch.from_numpy(np.stack([one.logps_at(width) for one in self.drawn]))

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
        return Played([self.rows[i] for i in kept], inputs, generated, drawn)

    @property
    def completions(self) -> list[tuple[int, ...]]:
        """The token ids of each completion."""
        ids_BT = self.inputs["completion_ids"].cpu()
        return [tuple(ids[kept].tolist()) for ids, kept in zip(ids_BT, self.mask_BT, strict=True)]


def first_rows(trainer: TrlTrainer) -> list[dict[str, Any]]:
    """The rows of the first generation, off a fresh iterator."""
    rows = next(iter(trainer.get_train_dataloader()))
    return [dict(row) for row in rows]  # sampling adds to them


def play(trainer: TrlTrainer, rows: Sequence[Mapping[str, Any]]) -> Played:
    """Sample and score the rows as in training."""
    trainer.model.train()
    own = [dict(row) for row in rows]
    caught: list[Generated] = []

    def catch(sample: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = set(vars(trainer))
        result = sample(*args, **kwargs)
        left = {name: value for name, value in vars(trainer).items() if name not in before}
        caught.append(Generated(result, left))
        return result

    with Patch(trainer, "_generate", catch), hearing(trainer, Guard()) as calls:
        inputs = dict(trainer._generate_and_score_completions(own))
    played = Played(own, inputs, caught[0] if caught else None)
    played.drawn = drawn(calls, [np.array(ids) for ids in played.completions])
    return played


def score_again(trainer: TrlTrainer, played: Played) -> Inputs:
    """Old and reference log-probs, rewards and advantages of the same completions, as in training
    with the weights as they are now."""
    if played.generated is None:
        raise NotRecorded("tokens.reference")
    trainer.model.train()
    rows = [dict(row) for row in played.rows]
    vars(trainer).update(played.generated.left)
    result = played.generated.result
    with Patch(trainer, "_generate", lambda *_, **__: result):
        return dict(trainer._generate_and_score_completions(rows))


def trained_logps(trainer: TrlTrainer, inputs: Inputs, size: int | None = None) -> Tensor:
    """Log-probs as the loss uses them, in passes of the trainer's size unless another is given."""
    size = size or int(trainer.args.per_device_train_batch_size)
    # The training loop sets it before the first pass.
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    found = []
    rollouts = list(range(len(inputs["completion_ids"])))
    for start in rollouts[::size]:
        piece = select(inputs, rollouts[start : start + size])
        found.append(_caught(trainer, piece))
    return torch.cat(found)


def fixed_logps(trainer: TrlTrainer, inputs: Inputs, size: int | None = None) -> Tensor:
    """The same without dropout: two calls of one size differ only by what was changed between."""
    with without_dropout(trainer):
        return trained_logps(trainer, inputs, size)


def scoring_logps(trainer: TrlTrainer, inputs: Inputs, model: Any = None) -> Tensor:
    """Log-probs without gradients, as TRL takes those of the old policy and of the reference."""
    ids_BT = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask_BT = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    keep = inputs["completion_ids"].shape[1]
    size = trainer.args.per_device_train_batch_size
    score = getattr(trainer, _scorer(trainer))
    images = {name: inputs[name] for name in signature(score).parameters if name in inputs}
    with torch.no_grad():
        found = score(
            trainer.model if model is None else model,
            ids_BT,
            mask_BT,
            keep,
            batch_size=size,
            **images,
        )
    return scored(found)[0]


@contextmanager
def without_dropout(trainer: TrlTrainer) -> Iterator[None]:
    """TRL asks the outermost module whether it trains; only the layers inside drop anything."""
    flags = [(module, module.training) for module in trainer.model.modules()]
    trainer.model.eval()
    trainer.model.training = True
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def batch_of(trainer: TrlTrainer, played: Played, trainer_BT: Tensor) -> Batch:
    """The batch as plain numbers."""
    rollout_T, position_T = played.batch.mask.nonzero()
    sampler_BT = played.sampler_BT
    return Batch(
        prompt_id_R=np.array(prompt_ids(played), dtype=object),
        group_R=np.arange(len(played.rows)) // trainer.num_generations,
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


def _caught(trainer: TrlTrainer, inputs: Inputs) -> Tensor:
    """The log-probs that one call of `_compute_loss` asks for."""
    found: list[Tensor] = []

    def catch(scorer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = scorer(*args, **kwargs)
        found.append(scored(result)[0].detach())
        return result

    with Patch(trainer, _scorer(trainer), catch):
        trainer._compute_loss(trainer.model_wrapped, dict(inputs))
    if not found:
        raise NotRecorded("tokens.trainer")
    return found[0]


def _scorer(trainer: TrlTrainer) -> str:
    name = scorer_of(trainer)
    if not name:
        raise NotRecorded("tokens.trainer")
    return name
