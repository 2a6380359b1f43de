"""Plays a batch and scores it, always through the trainer's own methods.

Log-probs are caught where `_compute_loss` asks for them, so whatever the trainer really does on the
way to its loss (its masks, its temperature, a subclass, a planted fault) is in them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live.hooks import Guard, Patch
from flatline.live.records import Batch, Floats
from flatline.live.trl.inputs import Inputs, rows_of, select, trimmed
from flatline.live.trl.recorder.batch import mean_advantage
from flatline.live.trl.recorder.rows import prompt_name
from flatline.live.trl.sampler import Drawn, drawn, hearing
from flatline.rollout.record import Author, Rollout

_SCORERS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")
"""The method that computes log-probs, by its name today and in older releases."""


class Generated(NamedTuple):
    """What `_generate` gave, before log-probs and rewards."""

    result: Any
    """Ids, masks, sampler log-probs and messages."""
    left: dict[str, Any]
    """Attributes that it left on the trainer, which a subclass may read afterwards."""

    def part(self, kept: Sequence[int], size: int) -> "Generated":
        """What it gave for some of the rows."""
        result = _recounted(self.result, rows_of(self.result, kept, size))
        return Generated(result, rows_of(self.left, kept, size))


def _recounted(whole: Any, part: Any) -> Any:
    """TRL up to 1.8 gives the count of all its tokens along with them, and divides losses by it:
    some of the rows have a count of their own."""
    if not isinstance(whole, tuple) or len(whole) < 3:
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
    """As `_generate_and_score_completions` returned them."""
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
        """Who wrote each token: from the record of the rollout, else from the tool mask."""
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


def first_rows(trainer: Any) -> list[dict[str, Any]]:
    """The rows of the first generation, off a fresh iterator."""
    rows = next(iter(trainer.get_train_dataloader()))
    return [dict(row) for row in rows]  # sampling adds to them


def play(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> Played:
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


def score_again(trainer: Any, played: Played) -> Inputs:
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


def trained_logps(trainer: Any, inputs: Inputs, size: int | None = None) -> Tensor:
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


def fixed_logps(trainer: Any, inputs: Inputs, size: int | None = None) -> Tensor:
    """The same without dropout: two calls of one size differ only by what was changed between."""
    with without_dropout(trainer):
        return trained_logps(trainer, inputs, size)


def scoring_logps(trainer: Any, inputs: Inputs, model: Any = None) -> Tensor:
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
    return _logps(found)


@contextmanager
def without_dropout(trainer: Any) -> Iterator[None]:
    """TRL asks the outermost module whether it trains; only the layers inside drop anything."""
    flags = [(module, module.training) for module in trainer.model.modules()]
    trainer.model.eval()
    trainer.model.training = True
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def batch_of(trainer: Any, played: Played, trainer_BT: Tensor) -> Batch:
    """The batch as plain numbers."""
    rows_BT, at_BT = np.indices(played.mask_BT.shape)
    mask = played.mask_BT.numpy()
    sampler_BT = played.sampler_BT
    return Batch(
        prompt_id_R=np.array(prompt_ids(played), dtype=object),
        group_R=np.arange(len(played.rows)) // trainer.num_generations,
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


def _caught(trainer: Any, inputs: Inputs) -> Tensor:
    """The log-probs that one call of `_compute_loss` asks for."""
    found: list[Tensor] = []

    def catch(scorer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = scorer(*args, **kwargs)
        found.append(_logps(result).detach())
        return result

    with Patch(trainer, _scorer(trainer), catch):
        trainer._compute_loss(trainer.model_wrapped, dict(inputs))
    if not found:
        raise NotRecorded("tokens.trainer")
    return found[0]


def _scorer(trainer: Any) -> str:
    name = next((name for name in _SCORERS if hasattr(trainer, name)), None)
    if name is None:
        raise NotRecorded("tokens.trainer")
    return name


def _logps(found: Any) -> Tensor:
    logps: Tensor = found[0] if isinstance(found, tuple) else found
    return logps
