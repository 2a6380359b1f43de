"""What the processes that train one model tell each other while they are looked at.

All of them measure the same things in the same order. What each says is plain JSON in a tensor of
bytes: nothing of another process is unpickled.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def count() -> int:
    """Processes that train together."""
    on = dist.is_available() and dist.is_initialized()
    return int(dist.get_world_size()) if on else 1


def number() -> int:
    """This process among them."""
    return int(dist.get_rank()) if count() > 1 else 0


def told(value: Any) -> list[Any]:
    """What each process says, in their order."""
    if count() == 1:
        return [value]
    own = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=_place())
    sizes = [int(size) for size in _gathered(torch.tensor([len(own)], device=_place()))]
    wide = torch.nn.functional.pad(own, (0, max(sizes) - len(own)))
    pairs = zip(_gathered(wide), sizes, strict=True)
    return [json.loads(bytes(said[:size].tolist())) for said, size in pairs]


def anybody(says: bool) -> bool:
    """Whether one of them says so: what clocks decide, all must decide alike."""
    return any(told(says))


def first(tensor: Tensor) -> Tensor:
    """That of process 0, on all of them: what is decided by it is decided alike everywhere."""
    if count() == 1:
        return tensor
    found = tensor.detach().to(_place(tensor.device)).contiguous().clone()
    dist.broadcast(found, 0)
    return found.to(tensor.device)


def of(process: int, tensors: Mapping[str, Tensor], place: torch.device) -> dict[str, Tensor]:
    """What one of them holds, on all of them, one tensor after another."""
    shapes = {name: [str(one.dtype)[6:], list(one.shape)] for name, one in tensors.items()}
    found = {}
    for name, (kind, shape) in told(shapes)[process].items():
        dtype = getattr(torch, kind)
        sent = torch.empty(shape, dtype=dtype) if number() != process else tensors[name].detach()
        # Not every backend carries truth values.
        sent = (sent.byte() if dtype is torch.bool else sent).to(_place(place)).contiguous()
        dist.broadcast(sent, process)
        found[name] = sent.to(place, dtype)
    return found


def summed(values: Sequence[float]) -> list[float]:
    """Each number, summed over all processes."""
    if count() == 1 or not values:
        return list(values)
    found = torch.tensor(values, dtype=torch.float64, device=_place())
    dist.all_reduce(found)
    return [float(value) for value in found.tolist()]


def agreed(error: Exception | None) -> Exception | None:
    """What went wrong in this process, or in another; None where it went well in all of them."""
    said = told(None if error is None else f"{type(error).__name__}: {error}")
    known = [(at, text) for at, text in enumerate(said) if text is not None]
    if error is not None or not known:
        return error
    return RuntimeError(f"process {known[0][0]} of {len(said)}: {known[0][1]}")


@contextmanager
def agreeing() -> Iterator[None]:
    """What raises inside in one process raises in all of them."""
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    failed = agreed(failed)
    if failed is not None:
        raise failed


def on_all(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same work; where it fails in one process, it fails in all."""

    @functools.wraps(work)
    def call(*args: Any, **kwargs: Any) -> Any:
        with agreeing():
            found = work(*args, **kwargs)
        return found

    return call


def _gathered(own: Tensor) -> list[Tensor]:
    found = [torch.empty_like(own) for _ in range(count())]
    dist.all_gather(found, own)
    return found


def _place(wanted: torch.device | None = None) -> torch.device:
    """Where tensors must be to travel: NCCL carries those of GPUs alone."""
    if "gloo" in str(dist.get_backend()):
        return torch.device("cpu")
    at = wanted if wanted is not None and wanted.type != "cpu" else None
    return at or torch.device(torch.accelerator.current_accelerator() or "cpu")
