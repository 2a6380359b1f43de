"""`flatline.Loop`: what a checkup needs of a training loop of your own.

    loop = flatline.Loop(
        model=model, optimizer=optimizer, tokenizer=tokenizer,
        prompts=prompts,        # those of one optimizer step
        sample=sample,          # prompts -> {"ids", "trained", "rewards", "advantages", ...}
        logprobs=logprobs,      # batch -> log-prob of ids[:, 1:]
        loss=loss,              # batch, logprobs -> a number to call backward on
        step=step,              # one step of the loop itself, to compare these functions with
    )
    flatline.checkup(loop)

docs/your-own-loop.md has a whole example.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flatline.errors import ConfigError
from flatline.trace.settings import refuse_unknown

Batch = dict[str, Any]
"""What one pass trains, row by row, by the loop's own names and these: `ids` and `trained` (whether
each token has a loss), rows x tokens; `rewards` and `advantages`, one a row. `parts` may say what
the rewards are made of, `gold` which answers are right, `attended` which tokens are seen, and
`reference` (as wide as log-probs) what a KL term compares with."""
PER_TOKEN = ("ids", "trained")
PER_ROW = ("rewards", "advantages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop in the words of a checkup: its own functions, called one at a time."""

    model: nn.Module
    """As it is trained."""
    optimizer: Any
    """The torch optimizer that steps it."""
    tokenizer: Any
    """Of the model."""
    prompts: Sequence[Any]
    """What one optimizer step samples for, as `sample` takes it."""
    sample: Callable[[Sequence[Any]], Batch | Sequence[Batch]]
    """Samples for some prompts, as many rows for each, one prompt after the other: a batch, or one
    for every pass of the loop."""
    logprobs: Callable[[Batch], Tensor]
    """The log-probs of `ids[:, 1:]` of a batch, as the loss takes them."""
    loss: Callable[[Batch, Tensor], Tensor]
    """The loss of a batch, from these."""
    step: Callable[[], object]
    """One optimizer step of the loop itself. It is watched, and the functions above must do the
    same: a checkup of an adapter is worth nothing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else is known, by the names of `flatline.trace.settings.SETTINGS`: `max_steps`."""

    def __post_init__(self) -> None:
        refuse_unknown(self.settings, "`settings` of a Loop")
        if not len(self.prompts):
            raise ConfigError(
                "A Loop needs `prompts`: those that one optimizer step samples for.\n"
                "There are none, so there is nothing to look at."
            )

    def batches(self, prompts: Sequence[Any]) -> list[Batch]:
        """Sample; a batch for every pass."""
        found = self.sample(prompts)
        batches = [found] if isinstance(found, Mapping) else list(found)
        for batch in batches:
            _refuse_odd(batch)
        rows = sum(len(batch["ids"]) for batch in batches)
        if not rows or rows % len(prompts):
            raise ConfigError(
                f"`sample` gave {rows} rows for {len(prompts)} prompts.\n"
                "Rewards are compared inside groups, of as many rows for each prompt.\n"
                "Give the rows of one prompt after those of the other, and all of them."
            )
        return batches

    def scored(self, batch: Batch) -> Tensor:
        """The loop's log-probs of a batch."""
        found = self.logprobs(batch)
        rows, tokens = batch["ids"].shape
        if not isinstance(found, Tensor) or found.shape != (rows, tokens - 1):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"`logprobs` gave {shape} for ids of {rows} x {tokens}, and {rows} x {tokens - 1} "
                "are needed.\n"
                "Entry t of a row is the log-prob of its token t + 1: the first has none."
            )
        return found


def _refuse_odd(batch: Mapping[str, Any]) -> None:
    missing = [name for name in (*PER_TOKEN, *PER_ROW) if name not in batch]
    if missing:
        raise ConfigError(
            f"A batch of `sample` has no {', '.join(missing)}.\n"
            "It needs `ids` and `trained` (rows x tokens), `rewards` and `advantages` (a number a "
            "row); it may also hold whatever else your loop uses."
        )
    shape = tuple(batch["ids"].shape)
    for name in (*PER_TOKEN, *PER_ROW):
        value = batch[name]
        seen = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        wanted = shape if name in PER_TOKEN else shape[:1]
        if seen != wanted:
            raise ConfigError(
                f"`{name}` of a batch of `sample` is {seen}, with ids of {shape}.\n"
                "`ids` and `trained` are tensors of rows x tokens: `trained` says of token t "
                "whether it has a loss, not of log-prob t, which is that of token t + 1. `rewards` "
                "and `advantages` are tensors with a number for each row.\n"
                "A checkup knows no advantages of single tokens; `flatline.watch` records a loop "
                "that has them."
            )


def refuse_lost(batches: Sequence[Batch], prompts: int) -> None:
    """An error that names the first group of which an advantage is no number."""
    advantage_R, reward_R = (
        torch.cat([batch[name].detach().double().cpu() for batch in batches])
        for name in ("advantages", "rewards")
    )
    lost = ~advantage_R.isfinite()
    if not lost.any():
        return
    at = int(lost.int().argmax()) * prompts // len(lost)
    paid = reward_R.view(prompts, -1)[at]
    equal = bool((paid == paid[0]).all())
    what = f"all {paid[0]:g}, so that their spread is 0" if equal else f"{paid.tolist()}"
    raise ConfigError(
        f"{int(lost.sum())} of {len(lost)} advantages of `sample` are no numbers. The first are of "
        f"prompt {at}, whose rewards are {what}.\n"
        "A step with them makes weights of the model NaN, after which there is nothing to look "
        "at.\n"
        "Divide by the spread and a little more, `(r - r.mean()) / (r.std() + 1e-4)`, or leave out "
        "groups of equal rewards."
    )
