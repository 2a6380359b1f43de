"""What one of verl's training workers really trains: heard in its own process.

    engine.train_batch      the loss function: log-probs of the pass that is trained through, and
                            what the loss does with each of them (its derivative)
    engine.optimizer_step   the weights before and after
    rollout.update_weights  what is sent to the rollout server

The trainer fetches it after each update (`flatline_heard`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.hooks import Guard, Patch
from flatline.live.weights import Census, Looked

Row = dict[str, Any]


class WorkerEar:
    """The hooks on one `ActorRolloutRefWorker`, once its model is built."""

    def __init__(self, worker: Any, guard: Guard) -> None:
        self._guard = guard
        self._engine = worker.actor.engine
        self._census: Census | None = None
        self._updates = self._steps = 0
        """Optimizer steps since it was asked last, and in all."""
        self._rows: list[Row] = []
        self._looked: Looked | None = None
        self._sent: dict[str, float] = {}
        self.patches = [
            Patch(self._engine, "train_batch", self._train_batch),
            Patch(self._engine, "optimizer_step", self._optimizer_step),
        ]
        if getattr(worker, "rollout", None) is not None:
            self.patches.append(Patch(worker.rollout, "update_weights", self._update_weights))

    def heard(self) -> Row:
        """Everything since the last time: plain numbers and arrays."""
        found: Row = {
            "rows": self._rows,
            "weights": [] if self._looked is None else self._looked.rows(),
            "updates": self._updates,
            "sent": self._sent,
        }
        self._rows, self._looked, self._updates = [], None, 0
        return found

    # -- the loss

    def _train_batch(
        self, original: Callable[..., Any], data: Any, loss_function: Callable[..., Any]
    ) -> Any:
        def listened(*args: Any, **kwargs: Any) -> Any:
            found = loss_function(*args, **kwargs)
            if self._updates == 0:  # what later updates see has been moved by the first
                self._guard(self._hear, found[0], kwargs)
            return found

        return original(data, loss_function=listened)

    def _hear(self, loss: Tensor, given: dict[str, Any]) -> None:
        logps, data = given["model_output"]["log_probs"], given["data"]
        slope = None
        if loss.requires_grad:
            slope = torch.autograd.grad(loss, logps, retain_graph=True, allow_unused=True)[0]
        weight = torch.zeros_like(logps.values()) if slope is None else -slope.values()
        parts = zip(
            data["uid"].tolist(),
            data["responses"].unbind(),
            completions(logps.values(), data),
            completions(weight, data),
            strict=True,
        )
        for uid, ids, logps_T, weight_T in parts:
            row = {"uid": uid, "ids": _host(ids).astype(np.int32)}
            self._rows.append(row | {"logps": _host(logps_T), "weight": _host(weight_T)})

    # -- the weights

    def _optimizer_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._guard(self._before_step)
        result = original(*args, **kwargs)
        self._guard(self._after_step)
        return result

    def _before_step(self) -> None:
        if self._census is None:
            self._census = Census(self._engine.module, self._engine.optimizer)
        if self._updates == 0 and self._census.is_due(self._steps + 1):
            self._census.before_step(readable=getattr(self._engine, "scaler", None) is None)

    def _after_step(self) -> None:
        self._updates, self._steps = self._updates + 1, self._steps + 1
        assert self._census is not None
        self._looked = self._looked or self._census.after_step(self._steps)

    # -- what is sent

    async def _update_weights(
        self, original: Callable[..., Any], weights: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return await original(self._passing(weights), *args, **kwargs)

    def _passing(self, weights: Any) -> Iterator[tuple[str, Tensor]]:
        """The same tensors, each looked at on its way."""
        norms: dict[str, float] = {}
        for name, tensor in weights:
            self._guard(norms.__setitem__, name, _size_of(tensor))
            yield name, tensor
        self._sent = norms


def completions(values: Tensor, data: Any) -> list[Tensor]:
    """Of each row's completion, from one value for every token of all rows: that of a token stands
    one place before it."""
    prompts, responses = (data[name].offsets().diff().tolist() for name in ("prompts", "responses"))
    both = [before + tokens for before, tokens in zip(prompts, responses, strict=True)]
    rows = torch.split(values.detach(), both)
    return [row[p - 1 : p - 1 + r] for row, p, r in zip(rows, prompts, responses, strict=True)]


def _host(values: Tensor) -> np.ndarray:
    wide = values.float() if values.is_floating_point() else values
    return np.asarray(wide.cpu().numpy())


def _size_of(tensor: Tensor) -> float:
    return float(tensor.detach().double().norm()) if tensor.is_floating_point() else float("nan")
