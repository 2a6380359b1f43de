"""Tensors on their way to the host.

The training begins the copy and goes on; who needs the numbers waits for them, in another thread.
Tensors that are on the host already stay where they are: whoever made them no longer changes them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


class Transfer:
    """Named tensors, all on their way at once."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: _begun(tensor.detach()) for name, tensor in tensors.items()}
        devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
        self._events = [_event_on(device) for device in devices]

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps in memory."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def __len__(self) -> int:
        """Rows of the first of them."""
        first = next(iter(self._tensors.values()), None)
        return 0 if first is None else len(first)

    def arrived(self) -> dict[str, Tensor]:
        """The tensors, as soon as all of them are there."""
        for event in self._events:
            event.synchronize()
        return dict(self._tensors)

    def part(self, name: str) -> "Transfer":
        """One of them, without keeping the others in memory."""
        one = Transfer({})
        one._events = self._events
        one._tensors = {key: held for key, held in self._tensors.items() if key == name}
        return one


def _event_on(device: torch.device) -> torch.cuda.Event:
    """What happens when all that the device was asked for so far is done."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # waits without CPU
    event.record(torch.cuda.current_stream(device))
    return event


def _begun(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
