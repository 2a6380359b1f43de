"""What a few steps of training do, stage by stage, to the last bit."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatline.live.hooks import Patch

Array = NDArray[Any]

_CLOCK = ("time", "per_second", "profiling")
"""In names of what a clock measured."""
DEALT = "dealt"
"""What a pass is given of a generation: rows, after everything that makes the generation."""
MOST = 1 << 20
"""Numbers of a value that are kept besides its digest, evenly taken from it."""


class Value(NamedTuple):
    """What was heard: two are the same or they are not, and numbers also have a distance."""

    digest: str
    numbers: Array
    """Empty for what is no tensor."""


Step = dict[str, list[Value]]
"""Stage -> what it gave in this step, in order."""


class Heard(NamedTuple):
    """What a few steps did."""

    steps: list[Step]
    log: list[dict[str, str]]
    asked: str = ""
    """What the script says that it asks for, as a digest: the arguments of the trainer and of its
    adapter, or the settings of a `flatline.Loop`, its adapter and its optimizer."""


def train_for(trainer: Any, steps: int) -> Heard:
    """Train for some steps. What is asked for otherwise (schedule, saving) stays as it is."""
    from transformers import TrainerCallback

    ears, asked = _Ears(trainer), _asked(trainer)

    class Listener(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            ears.hear_gradient(given["model"].parameters())

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            ears.hear_weights(given["model"].parameters())
            if state.global_step >= steps:
                control.should_training_stop = True

    trainer.add_callback(Listener())
    trainer.train()
    return Heard(ears.steps, _log(trainer.state.log_history), asked)


def _asked(trainer: Any) -> str:
    """What the user asked for: whatever another argument leads to is no defect."""
    return said({"arguments": trainer.args.to_dict(), "adapters": _adapters(trainer.model)})


def asked_of_loop(loop: Any) -> Any:
    """The same of a `flatline.Loop`: its settings, its adapter, what its optimizer is told."""
    told = dict(getattr(loop, "settings", {}))
    optimizer = getattr(getattr(loop, "optimizer", None), "defaults", {})
    adapters = _adapters(getattr(loop, "model", None))
    return {"settings": told, "adapters": adapters, "optimizer": optimizer}


def _adapters(model: Any) -> dict[str, Any]:
    return {name: one.to_dict() for name, one in getattr(model, "peft_config", {}).items()}


def said(told: Any) -> str:
    """A digest of what was asked for."""
    text = json.dumps(told, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, set) else str(value)


@contextmanager
def hearing_optimizers(steps: int, at_end: Callable[[Heard], None]) -> Iterator[None]:
    """A loop without a trainer: what every optimizer is given, and what it does.

    After so many steps `at_end` gets what was heard; it may raise to end the loop.
    """
    import torch
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    ears = _Ears(None)

    def before(optimizer: Any, *_: Any) -> None:
        ears.hear_gradient(_trained(optimizer), first=True)

    def after(optimizer: Any, *_: Any) -> None:
        ears.hear_weights(_trained(optimizer))
        if len(ears.steps) == steps:
            at_end(Heard(ears.steps, []))

    def paid(values: Any) -> None:
        ears.hear("rewards", torch.as_tensor(values).detach().double().cpu())

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        with _hearing_watch(paid):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _hearing_watch(paid: Callable[[Any], None]) -> Iterator[None]:
    """What a loop tells its own `flatline.watch` of its rewards."""
    from flatline.live.watch.watch import Watch

    rewards = Watch.rewards

    def listening(watch: Watch, values: Any, *args: Any, **kwargs: Any) -> None:
        paid(values)
        rewards(watch, values, *args, **kwargs)

    Watch.rewards = listening  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Watch.rewards = rewards  # type: ignore[method-assign]


def _trained(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


class _Ears:
    """Listens to one training. Every hook hands on what it hears, as it is."""

    def __init__(self, trainer: Any | None) -> None:
        self.steps: list[Step] = []
        self._now: Step = defaultdict(list)
        self._weights: Array | None = None
        if trainer is not None:
            self._weights = _numbers(_trainable(trainer.model.parameters()))
            self._wrap(trainer, "_generate_and_score_completions", self._generated)
            self._wrap(trainer, "_calculate_rewards", self._paid)
            self._wrap(trainer, "_get_per_token_logps_and_entropies", self._scored)
            self._wrap(trainer, "_prepare_inputs", self._dealt)
            self._wrap(trainer, "compute_loss", self._lost)

    def _wrap(self, trainer: Any, name: str, hear: Callable[[Any, Any, Any], None]) -> None:
        def listening(inner: Any, *args: Any, **kwargs: Any) -> Any:
            found = inner(*args, **kwargs)
            hear(trainer, args, found)
            return found

        Patch(trainer, name, listening)

    def hear(self, stage: str, *tensors: Any) -> None:
        numbers = _numbers(tensors)
        if len(tensors) == 1 and numbers.size == tensors[0].numel():
            numbers = numbers.reshape(tuple(tensors[0].shape))
        self._now[stage].append(Value(_digest(tensors), numbers))

    def hear_gradient(self, parameters: Iterable[Any], *, first: bool = False) -> None:
        every = list(parameters)
        if first and self._weights is None:
            self._weights = _numbers(_trainable(every))
        self.hear("gradient", *(one.grad for one in every if one.grad is not None))

    def hear_weights(self, parameters: Iterable[Any]) -> None:
        trained = _trainable(parameters)
        now = _numbers(trained)
        moved = now - self._weights if self._weights is not None else now
        self._weights = now
        self._now["update"].append(Value(_digest(trained), moved))
        self.steps.append(dict(self._now))
        self._now = defaultdict(list)

    def _generated(self, trainer: Any, args: Any, found: Any) -> None:
        rows = [{name: str(cell) for name, cell in row.items()} for row in args[0]]
        text = json.dumps(rows, sort_keys=True).encode()
        self._now["rows"].append(Value(hashlib.blake2b(text).hexdigest(), np.zeros(0)))
        # The weighted sum is seen in what is logged of it.
        totals = getattr(trainer, "_metrics", {}).get("train", {}).get("reward", ())
        self._now["rewards"].append(Value(repr(list(totals)), np.zeros(0)))
        shown = {**found, **_unpadded(found)}
        for stage, names in _HANDED_ON.items():
            self.hear(stage, *(shown[name] for name in names if shown.get(name) is not None))

    def _dealt(self, trainer: Any, args: Any, found: Any) -> None:
        """Which completions a pass is given."""
        self.hear(DEALT, *_unpadded(found).values())

    def _paid(self, trainer: Any, args: Any, found: Any) -> None:
        self.hear("rewards", found)

    def _scored(self, trainer: Any, args: Any, found: Any) -> None:
        logps = found[0]
        self.hear("log-probs", logps)
        if logps.requires_grad:
            logps.register_hook(lambda grad: self.hear("loss", grad))

    def _lost(self, trainer: Any, args: Any, found: Any) -> None:
        self.hear("loss", found if not isinstance(found, tuple) else found[0])


def _unpadded(batch: Any) -> dict[str, Any]:
    """Ids and what tools wrote, without padding, which is no part of a prompt or completion. A row
    that is masked as a whole keeps all of it, and so does a batch whose masks are no masks of it.
    """
    found = {}
    for name in ("prompt", "completion"):
        ids, mask = batch.get(f"{name}_ids"), batch.get(f"{name}_mask")
        if ids is not None and mask is not None and ids.shape == mask.shape:
            seen = mask.bool() | ~mask.bool().any(1, keepdim=True)
            found[f"{name}_ids"] = ids.masked_fill(~seen, -1)
        elif ids is not None:
            found[f"{name}_ids"] = ids
    tools, mask = batch.get("tool_mask"), batch.get("completion_mask")
    if tools is not None and mask is not None and tools.shape == mask.shape:
        found["tool_mask"] = tools * mask
    return found


_HANDED_ON = {
    "prompts": ("prompt_ids", "prompt_mask"),
    "completions": ("completion_ids",),
    "mask": ("completion_mask", "tool_mask"),
    "advantages": ("advantages",),
    "log-probs": ("old_per_token_logps", "old_logps", "ref_per_token_logps"),
}
"""Stage -> what TRL hands on to its passes."""


def kept(heard: Heard, file: Path) -> dict[str, Any]:
    """Everything but the numbers, which go into a file."""
    arrays: dict[str, Any] = {
        f"{at}/{stage}/{k}": value.numbers
        for at, step in enumerate(heard.steps)
        for stage, values in step.items()
        for k, value in enumerate(values)
    }
    with file.open("wb") as out:
        np.savez(out, **arrays)
    digests = [
        {stage: [value.digest for value in values] for stage, values in step.items()}
        for step in heard.steps
    ]
    return {"digests": digests, "log": heard.log, "asked": heard.asked}


def opened(told: dict[str, Any], file: Path) -> Heard:
    """The same again."""
    with np.load(file, allow_pickle=False) as arrays:
        steps = [
            {
                stage: [Value(one, arrays[f"{at}/{stage}/{k}"]) for k, one in enumerate(digests)]
                for stage, digests in step.items()
            }
            for at, step in enumerate(told["digests"])
        ]
    return Heard(steps, told["log"], told["asked"])


def _trainable(parameters: Iterable[Any]) -> list[Any]:
    return [one for one in parameters if one.requires_grad]


def _numbers(tensors: Iterable[Any]) -> Array:
    flat = [one.detach().reshape(-1).double().cpu().numpy() for one in tensors]
    if not flat:
        return np.zeros(0)
    whole = np.concatenate(flat)
    return whole[:: max(1, -(-len(whole) // MOST))]


def _log(history: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """What was logged, without what a clock measured."""
    return [
        {
            name: repr(value)
            for name, value in row.items()
            if not any(word in name for word in _CLOCK)
        }
        for row in history
    ]


def _digest(tensors: Iterable[Any]) -> str:
    import torch

    found = hashlib.blake2b(digest_size=16)
    for one in tensors:
        found.update(repr((tuple(one.shape), str(one.dtype))).encode())
        found.update(one.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()
