"""The table `weights`: norm, gradient, change of every trainable tensor.

Gradients are read before they are clipped. What a step changed is read from a copy of at most
`SAMPLE` elements of each tensor, every so many-th one, so that no random number is drawn. All of a
step's numbers reach the host in one transfer. Large models are looked at every few steps only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flatline.live.held import elements, held, is_part, is_shared
from flatline.live.transfer import Transfer

SAMPLE = 2**16
"""Elements of one tensor that are compared before and after a step."""
FEW = 2**12
"""Elements of one tensor that are kept from its start on, and from one step to the next."""
PER_STEP = {"cpu": 50_000_000, "cuda": 1_000_000_000}
"""Trained elements that are read at every step; of more, one step in several is recorded."""


@dataclass(slots=True)
class _Look:
    """What is known in the middle of a step."""

    before: list[Tensor]
    """The samples, one behind the other; a tensor for each device."""
    grads: list[Tensor | None] = field(default_factory=list)
    between: Sequence[Tensor | None] | None = None
    """What changed since the last step that was looked at."""


class Census:
    """Looks at the trainable weights of a model around its optimizer steps."""

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self._weights = [weight for _, weight in trained]
        self._held = _held(optimizer, self._weights)
        # Read once: rows are made in another thread, which must not ask DeepSpeed for anything.
        self._parts = [is_part(weight) for weight in self._weights]
        self._dtypes = [str(held(weight).dtype).removeprefix("torch.") for weight in self._weights]
        self._sizes = [elements(weight) for weight in self._weights]
        kind = self._weights[0].device.type if self._weights else "cpu"
        self.every = max(1, math.ceil(sum(self._sizes) / PER_STEP.get(kind, PER_STEP["cuda"])))
        """Optimizer steps from one record to the next."""
        self._look: _Look | None = None
        self._start: list[Tensor] | None = None
        """Some elements of every weight before the first step."""
        self._ended: tuple[int, list[Tensor]] | None = None
        """The last step that was looked at, and the same elements after it."""

    def is_due(self, step: int) -> bool:
        """The first step, then every so many-th."""
        return bool(self._weights) and (step == 1 or step % self.every == 0)

    def before_step(self, *, readable: bool) -> None:
        """Called with whole gradients; they are not `readable` if they are scaled (fp16), or if the
        step is done with them."""
        own = [held(weight) for weight in self._weights]
        self._look = _Look(before=_joined(_samples(own)))
        few = _samples(own, FEW)
        joined = _joined(few)
        if self._start is None:
            self._start = joined
        if self._ended is not None:
            self._look.between = _apart(few, joined, self._ended[1])
        pairs = zip(self._weights, self._parts, strict=True)
        grads = [weight.grad if readable and not part else None for weight, part in pairs]
        known = iter(_norms([held(grad) for grad in grads if grad is not None]))
        self._look.grads = [None if grad is None else next(known) for grad in grads]

    def grad_norm(self) -> Tensor | None:
        """Over all weights, for trainers that never clip."""
        known = [norm for norm in self._look.grads if norm is not None] if self._look else []
        return torch.stack([norm.to(known[0].device) for norm in known]).norm() if known else None

    def along_gradient(self) -> Tensor | None:
        """What the loss gains by the step, to first order and of the elements looked at: how far
        the weights went along their gradients, which must still be there."""
        if self._look is None:
            return None
        samples = _samples([held(weight) for weight in self._weights])
        pairs = zip(self._weights, samples, strict=True)
        grads = _joined([_gradient(weight, sample) for weight, sample in pairs])
        parts = zip(_joined(samples), self._look.before, grads, strict=True)
        gains = [torch.dot((now - before).float(), grad.float()) for now, before, grad in parts]
        return torch.stack([gain.to(gains[0].device) for gain in gains]).sum()

    def after_step(self, step: int) -> "Looked | None":
        """What the step did to every tensor; None where it was not looked at."""
        if self._look is None:
            return None
        look, self._look = self._look, None
        own = [held(weight) for weight in self._weights]
        samples = _samples(own)
        pairs = zip(_joined(samples), look.before, strict=True)
        moved = [after.float() - before.float() for after, before in pairs]
        follows = self._ended is not None and self._ended[0] == step - 1
        few = _samples(own, FEW)
        joined = _joined(few)
        assert self._start is not None  # taken before the step
        self._ended = (step, joined)
        nothing = [None] * len(self._weights)
        columns: dict[str, Any] = {
            "norm": _norms(own),
            "grad_norm": look.grads,
            "update_norm": _norms(_parted(moved, samples)),
            "changed": _norms(_parted([(move != 0).float() for move in moved], samples), order=1),
            "travel": _apart(few, joined, self._start),
            "between": look.between if follows else nothing,
        }
        return Looked(self, step, [int(sample.numel()) for sample in samples], columns)

    def row(
        self, step: int, at: int, sampled: int, numbers: dict[str, list[float | None]]
    ) -> dict[str, Any]:
        """Of one tensor, the `at`-th."""
        size = self._sizes[at]
        change, changed = numbers["update_norm"][at] or 0.0, numbers["changed"][at] or 0.0
        return {
            "step": step,
            "name": self.names[at],
            "size": size,
            "dtype": self._dtypes[at],
            "norm": None if self._parts[at] else numbers["norm"][at],
            "grad_norm": numbers["grad_norm"][at],
            # The sample stands for the whole tensor.
            "update_norm": change * math.sqrt(size / sampled) if sampled else None,
            "changed_share": changed / sampled if sampled else None,
            "travel": None if self._parts[at] else _scaled(numbers["travel"][at], size),
            "between": None if self._parts[at] else _scaled(numbers["between"][at], size),
            "sampled": sampled,
            "in_optimizer": self._held[at],
        }


class Looked:
    """The numbers of one step, on their way to the host in one piece."""

    def __init__(
        self, census: Census, step: int, sampled: list[int], columns: dict[str, Any]
    ) -> None:
        self._census, self._step, self._sampled = census, step, sampled
        known = [value for column in columns.values() for value in column if value is not None]
        if len({(value.dtype, value.device) for value in known}) > 1:
            known = [value.float().to(known[0].device) for value in known]
        together = torch.stack(known).float()
        self._sent = Transfer({"numbers": together})
        self._known = {n: [value is not None for value in column] for n, column in columns.items()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for every tensor."""
        arrived = iter(self._sent.arrived()["numbers"].tolist())
        numbers = {
            name: [next(arrived) if known else None for known in column]
            for name, column in self._known.items()
        }
        sizes = enumerate(self._sampled)
        return [self._census.row(self._step, at, size, numbers) for at, size in sizes]


def _held(optimizer: Any, weights: Sequence[Tensor]) -> list[int | None]:
    """Whether the optimizer has each of the weights; a sharded one may stand there as another."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        return [None] * len(weights)
    known = {id(weight) for group in groups for weight in group["params"]}
    return [None if is_shared(weight) else int(id(weight) in known) for weight in weights]


def _gradient(weight: Tensor, sample: Tensor) -> Tensor:
    """The same elements of its gradient as of the weight; 0 where it has none."""
    found = weight.grad
    if found is None or is_part(weight):
        return torch.zeros_like(sample)
    return _sample(held(found), SAMPLE).to(sample.dtype)


def _samples(own: Sequence[Tensor], most: int = SAMPLE) -> list[Tensor]:
    return [_sample(tensor, most) for tensor in own]


def _sample(own: Tensor, most: int) -> Tensor:
    """Every n-th element; n is odd, so that rows of even length are not met at one place only."""
    flat, size = own.reshape(-1), own.numel()
    return flat if size <= most else flat[:: _stride(size, most)]


def _stride(size: int, most: int) -> int:
    stride = math.ceil(size / most)
    return stride | 1 if stride > 1 else 1


def _scaled(norm: float | None, size: int) -> float | None:
    """Of a whole tensor, from that of a few of its elements."""
    few = math.ceil(size / _stride(size, FEW))
    return None if norm is None or not few else norm * math.sqrt(size / few)


def _apart(
    now: Sequence[Tensor], joined: Sequence[Tensor], before: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """How far each sample is from what it was. `joined` are the samples of now; unknown where the
    parts that this process holds are others than they were `before`."""
    if [one.shape for one in joined] != [one.shape for one in before]:
        return [None] * len(now)
    pairs = zip(joined, before, strict=True)
    return _norms(_parted([a.float() - b.float() for a, b in pairs], now))


def _joined(samples: Sequence[Tensor]) -> list[Tensor]:
    """One behind the other: a few large kernels instead of several small ones for each tensor."""
    return [torch.cat(together) for together in _by_device(samples).values()]


def _parted(joined: Sequence[Tensor], samples: Sequence[Tensor]) -> list[Tensor]:
    """The parts of what `_joined` made, in the order of the samples."""
    if len(joined) == 1:
        return list(torch.split(joined[0], [one.numel() for one in samples]))
    groups = zip(joined, _by_device(samples).items(), strict=True)
    parts = {
        device: iter(torch.split(whole, [one.numel() for one in together]))
        for whole, (device, together) in groups
    }
    return [next(parts[sample.device]) for sample in samples]


def _by_device(samples: Sequence[Tensor]) -> dict[torch.device, list[Tensor]]:
    devices = {sample.device for sample in samples}
    if len(devices) == 1:
        return {devices.pop(): list(samples)}
    found: dict[torch.device, list[Tensor]] = {}
    for sample in samples:
        found.setdefault(sample.device, []).append(sample)
    return found


def _norms(tensors: Sequence[Tensor], order: int = 2) -> list[Tensor]:
    if not tensors:
        return []
    half = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
    dtype = torch.float32 if half else None  # a norm in 16 bits has three digits
    return list(torch._foreach_norm(list(tensors), order, dtype))
