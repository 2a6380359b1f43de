"""Records a step of decoding on a GPU, and replays it.

A recording holds the addresses of everything the step touches. Weights may change their values
under it, as an optimizer does, but not their place; and what the host decided while it was made
(adapters on or off, precision, hooks) is decided for good. `setting` names all that; where it
changes, recordings are thrown away.
"""

import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

Step = Callable[[], None]
Record = Callable[[Step], Step]
"""Runs a step at least once, and returns what runs it again."""

WARM_UP = 2
"""Steps before the first recording: libraries make their plans and workspaces in these. Before a
later one a single step loads what its shape needs."""


IDLE = "make_inputs_require_grads"
"""A hook of transformers that asks for gradients, of which there are none while playing. TRL has it
hooked again around every batch where activations are recomputed (gradient checkpointing)."""


class Graphs:
    """Recorded steps, by what makes them differ. Without a recorder steps are simply run."""

    def __init__(self, record: Record | None) -> None:
        self._record = record
        self._replays: dict[Hashable, Step] = {}

    def run(
        self, key: Hashable, step: Step, parked: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Run the step, recorded if it can be. Inside `parked` a step leaves no mark."""
        if key not in self._replays and self._record is not None:
            with parked():
                self._try(key, step, self._record)
        self._replays.get(key, step)()

    def clear(self) -> None:
        """Throw the recordings away."""
        if self._replays and torch.cuda.is_available():
            torch.cuda.synchronize()  # one of them may still be running
        self._replays.clear()

    def _try(self, key: Hashable, step: Step, record: Record) -> None:
        try:
            self._replays[key] = record(step)
        except torch.OutOfMemoryError:
            if not self._replays:
                raise
            self.clear()
            self._try(key, step, record)
        except RuntimeError as error:
            self._give_up(error)

    def _give_up(self, error: RuntimeError) -> None:
        self._record = None
        self.clear()
        reason = str(error).strip().partition("\n")[0]
        print(
            f"flatline: the model's decoding step cannot be recorded as a CUDA graph ({reason!r}); "
            "it is launched kernel by kernel, which gives the same tokens more slowly.",
            file=sys.stderr,
        )


class CudaRecorder:
    """Records on a stream of its own. Recordings share their memory: none runs beside another, and
    what must last lies outside."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._living: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def __call__(self, step: Step) -> Step:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), _casting_anew():
                for _ in range(1 if self._living else WARM_UP):
                    step()
                return self._recorded(step)
        finally:
            current.wait_stream(self._stream)

    def _recorded(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        if not self._living:  # torch refuses a pool that all recordings have left
            self._pool = torch.cuda.graph_pool_handle()
        self._stream.synchronize()
        # Other threads may use the device meanwhile. Not `torch.cuda.graph`, which hands all idle
        # memory back to the driver at each recording: training would have to ask for it again.
        graph.capture_begin(self._pool, capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
        self._living.add(graph)
        return graph.replay


def _casting_anew() -> AbstractContextManager[None]:
    """The autocast in force, without its memory: a recording must cast weights at each replay, not
    look at what they were when it was made."""
    context: AbstractContextManager[None] = torch.autocast(
        "cuda",
        dtype=torch.get_autocast_dtype("cuda"),
        enabled=torch.is_autocast_enabled("cuda"),
        cache_enabled=False,
    )
    return context


def recorder(device: torch.device) -> Record | None:
    """What records on this device; None where nothing does."""
    return CudaRecorder(device) if device.type == "cuda" else None


def setting(model: Any) -> Hashable:
    """All that a recording of a step depends on, but for the values of weights."""
    kind = model.device.type
    casts = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    return (casts, *(_module_setting(module) for module in model.modules()))


def _module_setting(module: torch.nn.Module) -> Hashable:
    tensors = (*module._parameters.values(), *module._buffers.values())
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    calls = [getattr(call, "__func__", call) for call in (*hooks, vars(module).get("forward"))]
    calls = [call for call in calls if getattr(call, "__name__", "") != IDLE]
    return (
        id(module),
        module.training,
        tuple((t.data_ptr(), t.dtype, t.shape) for t in tensors if isinstance(t, Tensor)),
        tuple(map(id, calls)),
        _adapter_setting(module),
    )


def _adapter_setting(module: Any) -> Hashable:
    """What a PEFT layer decides on the host."""
    if not hasattr(module, "base_layer"):
        return None
    scales = getattr(module, "scaling", {})
    return (
        bool(module.disable_adapters),
        tuple(module.active_adapters),
        tuple(module.merged_adapters),
        tuple((name, float(scale)) for name, scale in scales.items()),
    )
