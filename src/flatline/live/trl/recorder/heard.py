"""What the hooks heard of one generation and of one pass of the loss.

It leaves the device while the training goes on (`send`), and is read by the thread that writes
(`arrive`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.batch import Padded, to_numpy
from flatline.live.hooks import is_mask
from flatline.live.transfer import Transfer
from flatline.live.trl.grpo import scored
from flatline.live.trl.sampler import Call

ROLLOUT = "rollout_idx"
"""Key of the numbers by which rows are found again after TRL has shuffled and split them."""
HELD_OUT = -1
"""Such a number of a row that an evaluation sampled."""
READ = (
    ROLLOUT,
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "old_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
)
"""What of a batch is recorded; images and the like stay on the device."""

Ids = list[list[int]]


@dataclass(slots=True)
class Generation:
    """One call of TRL's generation, as it was given; worked on when the step has ended."""

    step: int
    """The optimizer step that comes next."""
    weights: int | None
    """Optimizer steps behind the weights; None where the sampler has weights of its own."""
    first: int
    """Position of this process's first rollout in the step."""
    rows: Sequence[Mapping[str, Any]]
    """The dataset's rows, one per rollout."""
    output: dict[str, Any] = field(default_factory=dict)
    rewards: Tensor | None = None
    """Of all processes: one row per rollout, one column per reward function."""
    completions: Sequence[Any] = ()
    """As text or messages."""
    completion_ids: Sequence[Sequence[int]] = ()
    """Before padding."""
    sampled: tuple[Ids, Ids] | None = None
    """Prompts and completions as `_generate` gave them, since TRL 0.24."""
    kept: Sequence[int] = ()
    """Which of the rows the trainer hands on to its loss, in the order of what it hands on."""
    events: Sequence[Mapping[str, int]] = ()
    """Counts of tool calls and the like, from environments that keep them."""
    calls: list[Call] = field(default_factory=list)
    """Of transformers' `generate`, where that sampled and all of it was heard."""
    _sent: Sequence[Transfer] = ()

    def send(self) -> int:
        """Begin to copy what is read to the host; its bytes."""
        rewards = {} if self.rewards is None else {"rewards": self.rewards}
        calls = [call._asdict() for call in self.calls]
        self._sent = [Transfer(part) for part in (_read(self.output) | rewards, *calls)]
        self.output, self.rewards, self.calls = {}, None, []
        return sum(one.nbytes for one in self._sent)

    def arrive(self) -> None:
        """Wait until it is there."""
        self.output, *calls = (one.arrived() for one in self._sent)
        self.rewards = self.output.pop("rewards", None)
        self.calls, self._sent = [Call(**call) for call in calls], ()

    def hear_sampled(self, result: Any) -> None:
        found = result[:2] if isinstance(result, tuple) else ()
        if len(found) == 2 and all(isinstance(ids, list) for part in found for ids in part):
            self.sampled = found

    def hear_rewards(self, args: tuple[Any, ...], kwargs: Any, result: Any, seconds: float) -> None:
        """`_calculate_rewards(inputs, prompts, completions, completion_ids_list)`."""
        names = ("inputs", "prompts", "completions", "completion_ids_list")
        given = dict(zip(names, args, strict=False))
        given |= kwargs
        self.rewards = result.detach()
        self.completions = given.get("completions") or ()
        self.completion_ids = given.get("completion_ids_list") or ()

    def hear_payments(self, paid: Mapping[int, Any], rewards: int, rank: int) -> None:
        """By reward function, where nothing but these was heard; NaN for what was not."""
        found = np.full((rank * len(self.rows) + len(self.rows), rewards), np.nan, np.float32)
        for at, values in paid.items():
            known = [np.nan if one is None else float(one) for one in values]
            found[rank * len(self.rows) :, at] = known
        self.rewards = torch.from_numpy(found)


@dataclass(slots=True)
class Pass:
    """One call of `_compute_loss`: what it was given and what it came to."""

    inputs: Mapping[str, Any]
    logps: Tensor | None = None
    """The trainer's log-probs of the completion."""
    entropies: Tensor | None = None
    loss: Tensor | None = None
    masks: list[Any] = field(default_factory=list)
    """Attention masks of the forward passes, in their order."""
    _graded: bool = False
    _sent: Transfer | None = None

    def send(self) -> Transfer:
        """Begin to copy all of it to the host; what is on its way."""
        found = {"logps": self.logps, "entropies": self.entropies, "loss": self.loss}
        if all(is_mask(mask) for mask in self.masks):
            found |= {f"mask {at}": mask for at, mask in enumerate(self.masks)}
        known = {name: tensor for name, tensor in found.items() if tensor is not None}
        self._sent = Transfer({**_read(self.inputs), **known})
        self.inputs, self.masks = {}, []
        self.logps = self.entropies = self.loss = None
        return self._sent

    def arrive(self) -> None:
        """Wait until it is there."""
        if self._sent is None:
            return
        found, self._sent = self._sent.arrived(), None
        self.inputs = {name: found[name] for name in READ if name in found}
        self.logps, self.entropies = found.get("logps"), found.get("entropies")
        self.loss = found.get("loss")
        self.masks = [tensor for name, tensor in found.items() if name.startswith("mask ")]

    def hear_logps(self, args: Any, kwargs: Any, result: Any, seconds: float) -> None:
        """The pass that is trained through counts; what is compared with it has no gradient."""
        logps, entropies = scored(result)
        if self.logps is not None and (self._graded or not logps.requires_grad):
            return
        self.logps, self._graded = logps.detach(), bool(logps.requires_grad)
        self.entropies = None if entropies is None else entropies.detach()

    def hear_mask(self, depth: int, mask: Any) -> None:
        """A forward pass goes through several modules; the innermost mask is the real one."""
        if self.logps is not None:
            return
        if depth == 0:
            self.masks.append(mask)
        elif self.masks and is_mask(mask):
            self.masks[-1] = mask

    def attention(self, batch: Padded) -> np.ndarray | None:
        """The mask over prompt and completion, where the model was given one of this shape."""
        rows, width = batch["completion_ids"].shape
        width += batch["prompt_ids"].shape[1]
        if not self.masks or not all(is_mask(mask) for mask in self.masks):
            return None
        found = np.concatenate([to_numpy(mask) for mask in self.masks])
        return found != 0 if found.shape == (rows, width) else None


def _read(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: tensors[name] for name in READ if isinstance(tensors.get(name), Tensor)}
