"""What the Tinker API is given and gives, as arrays.

A `Datum` has a target for each token of its input. Tokens here are those of the whole sequence: the
first of the input, then the targets, since log-prob, advantage and weight t are those of target t.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatline.live.watch.rows import CUT, ENDED, Read
from flatline.live.watch.sampling import Sample, Tail

MASKS = ("weights", "mask")
"""Inputs of a loss that say which targets count; without any, all that have an advantage."""
STOPPED = {"stop": ENDED, "length": CUT}


@dataclass(eq=False, slots=True, kw_only=True)
class Drawn(Sample):
    """One sequence of the API's sampler."""

    sequence: Any
    """As the loop got it."""
    params: Any
    """What it was sampled with."""


def drawn(prompt: Any, params: Any, response: Any, version: int, call: int) -> list[Drawn]:
    """The sequences of one call of `sample`: several are a group."""
    group = (call, 0) if len(response.sequences) > 1 else None
    return [
        Drawn(
            prompt=ids_of(prompt),
            ids=np.array(one.tokens, dtype=np.int32),
            logps=_or_unknown(one.logprobs, len(one.tokens)),
            ended=True,
            version=version,
            tail=Tail(None),
            row=0,
            finish=STOPPED.get(str(one.stop_reason), str(one.stop_reason)),
            group=group,
            sequence=one,
            params=params,
        )
        for one in response.sequences
    ]


def _or_unknown(values: Any, size: int) -> np.ndarray:
    return np.full(size, np.nan) if values is None else np.array(values, dtype=float)


def ids_of(model_input: Any) -> np.ndarray:
    """Of text alone: an image has no ids."""
    return np.array(model_input.to_ints(), dtype=np.int32)


def is_text(model_input: Any) -> bool:
    return all(hasattr(chunk, "tokens") for chunk in model_input.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One datum. Arrays have an entry for each target."""

    given: np.ndarray
    """Tokens of the input."""
    target: np.ndarray
    mask: np.ndarray | None
    """How much each target counts, where the loop says so."""
    advantage: np.ndarray
    old: np.ndarray | None
    trainer: np.ndarray
    loss: np.ndarray | None
    """Of each target, as the server has it."""

    @property
    def counts(self) -> np.ndarray:
        """How much each target counts times its advantage."""
        return self.advantage if self.mask is None else self.advantage * self.mask

    @property
    def trained(self) -> np.ndarray:
        """Targets with a loss: those that are said to count, or else have an advantage."""
        return np.asarray((self.counts if self.mask is None else self.mask) != 0)

    @property
    def mean_advantage(self) -> float:
        """Of the targets with a loss; 0 without any."""
        return float(self.advantage[self.trained].mean()) if self.trained.any() else 0.0

    @property
    def follows(self) -> np.ndarray:
        """Whether each target is the token that follows in the input; the last always is."""
        return np.append(self.target[:-1] == self.given[1:], True)

    @property
    def ids(self) -> np.ndarray:
        """The whole sequence. Loops write anything in place of targets that do not count."""
        then = np.append(self.given[1:], self.target[-1])
        return np.concatenate([self.given[:1], np.where(self.trained, self.target, then)])

    def weight(self, loss_fn: str, config: Any) -> np.ndarray:
        """Minus the derivative of the loss by each log-prob, up to how the server averages."""
        if loss_fn == "cross_entropy" or self.old is None:
            return self.counts
        ratio = np.exp(np.minimum(self.trainer - self.old, 50.0))
        if loss_fn == "ppo":
            low, high = clip_of(config)
            stopped = np.where(self.advantage > 0, ratio > high, ratio < low)
            ratio = np.where(stopped, 0.0, ratio)
        return np.asarray(ratio * self.counts)


def clip_of(config: Any) -> tuple[float, float]:
    """Where `ppo` clips the ratio."""
    given = config or {}
    return given.get("clip_low_threshold", 0.8), given.get("clip_high_threshold", 1.2)


def row_of(datum: Any, output: Any) -> Row:
    """One datum beside what the server answered for it."""
    target = column(datum.loss_fn_inputs, "target_tokens")
    assert target is not None
    masks = [column(datum.loss_fn_inputs, name) for name in MASKS]
    mask = next((one for one in masks if one is not None), None)
    advantage = column(datum.loss_fn_inputs, "advantages")
    trainer = column(output, "logprobs")
    return Row(
        given=ids_of(datum.model_input),
        target=target.astype(np.int32),
        mask=mask,
        advantage=np.ones(len(target)) if advantage is None else advantage,
        old=column(datum.loss_fn_inputs, "logprobs"),
        trainer=np.full(len(target), np.nan) if trainer is None else trainer,
        loss=column(output, "elementwise_loss"),
    )


def column(named: Any, name: str) -> np.ndarray | None:
    """One input or output of a loss, in a row; None where there is none."""
    values = named.get(name)
    return None if values is None else np.array(values.data, dtype=float).reshape(-1)


def read(rows: Sequence[Row], loss_fn: str, config: Any) -> Read:
    """A pass as `watch` has it, padded at the right."""
    width = max(len(row.ids) for row in rows)

    def placed(values: Sequence[np.ndarray], fill: float) -> np.ndarray:
        """Log-prob t stands at token t + 1."""
        whole = np.full((len(rows), width), fill)
        for at, one in enumerate(values):
            whole[at, 1 : len(one) + 1] = one
        return whole

    ids = np.zeros((len(rows), width), dtype=np.int32)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = row.ids
    known = [row.old for row in rows if row.old is not None]
    return Read(
        ids=ids,
        attended=None,
        trained=placed([row.trained for row in rows], 0) != 0,
        weight=placed([row.weight(loss_fn, config) for row in rows], np.nan),
        trainer=placed([row.trainer for row in rows], np.nan),
        entropy=np.zeros(0),
        advantage=placed([row.advantage for row in rows], np.nan),
        old=placed(known, np.nan) if len(known) == len(rows) else None,
    )
