"""What only exists between processes: one real step of all of them, as training does it.

Each draws its own rows, plays them, is paid and passes them through the loss; then one process does
the same passes. All of it happens in step: where one process fails, all do, and nobody waits.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live import ranks
from flatline.live.held import gradient_copies, is_shared, named, read, steps_in_backward
from flatline.live.hooks import Patch
from flatline.live.inputs import Inputs
from flatline.live.measure.passes import no_dropout
from flatline.live.measure.played import Played
from flatline.live.measure.step import Backward
from flatline.live.measure.stepped import cosine, norm
from flatline.live.ranks import agreeing, on_all
from flatline.live.step_records import Between
from flatline.live.trl.alone import alone, is_plain
from flatline.live.trl.departure.asked import asked_of, tolerance_of
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.measure.backward import backward
from flatline.live.trl.measure.scoring import play
from flatline.spec import NotSpecified
from flatline.spec.advantages import advantages, beyond_rounding

GENERATIONS = 3
"""Generations of which the prompts are compared: two processes may share one by chance."""
PAID = 1e-5
"""Of a reward, relative to 1 plus its size: it is handed on in float32."""


def between(trainer: GrpoTrainer) -> Between:
    """One step of all processes together."""
    drawn = _drawn(trainer)
    no_dropout(trainer)
    with _in_step(trainer), _paid(trainer) as paid:
        played = play(trainer, drawn[0])
    with agreeing():
        rewards = _rewards(trainer, paid)
    names = [_names(rows) for rows in drawn]
    limit = tolerance_of(trainer)
    compared = _gradients(trainer, played)
    return Between(
        processes=ranks.count(),
        prompts=tuple(tuple(map(tuple, one)) for one in ranks.told(names)),
        group=int(trainer.num_generations),
        broken=_broken([name for one in ranks.told(names[0]) for name in one], trainer),
        misplaced=_misplaced(rewards, paid),
        advantage_off=_advantage_off(trainer, rewards, played),
        differing=_differing(trainer),
        lengths=None if compared is None else tuple(length for length, _ in compared),
        cosines=None if compared is None else tuple(alike for _, alike in compared),
        length_limit=limit.length,
        cosine_limit=limit.cosine,
    )


def _drawn(trainer: GrpoTrainer) -> list[list[dict[str, Any]]]:
    """The rows of this process's first generations; what lies between are repeats."""
    args = trainer.args
    stride = args.steps_per_generation * args.num_iterations
    with agreeing():
        batches = islice(iter(trainer.get_train_dataloader()), 0, GENERATIONS * stride, stride)
        found = [[dict(row) for row in rows] for rows in batches]
    return found


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    texts = (repr(row.get("prompt")).encode() for row in rows)
    return [hashlib.sha256(text).hexdigest()[:12] for text in texts]


def _broken(names: Sequence[str], trainer: GrpoTrainer) -> tuple[int, ...]:
    size = int(trainer.num_generations)
    groups = [names[at : at + size] for at in range(0, len(names), size)]
    return tuple(at for at, group in enumerate(groups) if len(set(group)) > 1)


@contextmanager
def _in_step(trainer: GrpoTrainer) -> Iterator[None]:
    """Inside, what is the user's own fails in all processes where it fails in one: the others
    would wait for what it has to give."""
    functions = list(trainer.reward_funcs)
    trainer.reward_funcs[:] = [on_all(one) if is_plain(one) else one for one in functions]
    try:
        with Patch(trainer, "_generate", on_all(lambda sample, *a, **k: sample(*a, **k))):
            yield
    finally:
        trainer.reward_funcs[:] = functions


class _Paid:
    """What the functions of this process paid, and what the trainer went on with."""

    def __init__(self) -> None:
        self.by_function: dict[int, list[float | None]] = {}
        self.arrived_BF: Tensor | None = None


@contextmanager
def _paid(trainer: GrpoTrainer) -> Iterator[_Paid]:
    heard = _Paid()
    functions = list(trainer.reward_funcs)

    def listener(at: int, function: Any) -> Any:
        def pay(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            heard.by_function[at] = [None if one is None else float(one) for one in found]
            return found

        return pay

    def arriving(calculate: Any, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = calculate(*args, **kwargs)
        heard.arrived_BF = found.detach().double().cpu()
        return found

    for at, function in enumerate(functions):
        if is_plain(function):
            trainer.reward_funcs[at] = listener(at, function)
    with Patch(trainer, "_calculate_rewards", arriving):
        try:
            yield heard
        finally:
            trainer.reward_funcs[:] = functions


def _rewards(trainer: GrpoTrainer, paid: _Paid) -> Tensor | None:
    """What was paid in all processes, in their order; None where a function was not heard."""
    each = range(len(trainer.reward_funcs))
    said = ranks.told([paid.by_function.get(at) for at in each])
    if any(one is None for process in said for one in process):
        return None
    columns = [[value for process in said for value in process[at]] for at in each]
    rows = [[torch.nan if value is None else value for value in one] for one in columns]
    return torch.tensor(rows, dtype=torch.float64).T


def _misplaced(rewards_BF: Tensor | None, paid: _Paid) -> int | None:
    """The most that any process counts."""
    arrived_BF, wrong = paid.arrived_BF, None
    if rewards_BF is not None and arrived_BF is not None and arrived_BF.shape == rewards_BF.shape:
        off_BF = (arrived_BF - rewards_BF).abs() > PAID * (1 + rewards_BF.abs())
        wrong = int((off_BF | (arrived_BF.isnan() != rewards_BF.isnan())).any(1).sum())
    said: list[int | None] = ranks.told(wrong)
    known = [one for one in said if one is not None]
    return max(known) if len(known) == len(said) else None


def _advantage_off(trainer: GrpoTrainer, rewards_BF: Tensor | None, played: Played) -> float | None:
    """The advantages of all processes, in their order, against those of all rewards."""
    found = played.inputs["advantages"].detach().double().cpu()
    said = ranks.told(found.tolist() if found.dim() == 1 else None)
    if rewards_BF is None or None in said:
        return None
    found_B = np.array([value for one in said for value in one], dtype=np.float64)
    asked = asked_of(trainer, trainer.args.per_device_train_batch_size)
    try:
        expected_B = advantages(asked, rewards_BF.numpy())
    except (NotSpecified, ValueError):  # rows that fill no whole groups
        return None
    return float(beyond_rounding(asked, rewards_BF.numpy(), found_B, expected_B).max())


def _differing(trainer: GrpoTrainer) -> tuple[str, ...] | None:
    """Of weights that every process holds whole, compared by the sum of their bits."""
    if not trainer.is_in_train:
        return None
    weights = [(name, read(w)) for name, w in named(trainer.model) if not is_shared(w)]
    said = ranks.told([_bits(weight) for _, weight in weights])
    return tuple(
        name for (name, _), *sums in zip(weights, *said, strict=True) if len(set(sums)) > 1
    )


def _bits(weight: Tensor) -> int:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(weight.contiguous().view(kinds[weight.element_size()]).sum(dtype=torch.int64))


def _gradients(trainer: GrpoTrainer, played: Played) -> list[tuple[float, float]] | None:
    """Of each process: length over that of the same passes in one process, and their cosine."""
    if steps_in_backward(trainer) or not trainer.is_in_train:
        return None
    trainer.args.max_grad_norm = 0
    real, passes = _real(trainer, played)
    expected = _as_one(trainer, passes)
    length = norm(trainer, expected)
    own = norm(trainer, real.gradients) / length if length else float("nan")
    said = ranks.told([own, cosine(trainer, real.gradients, expected)])
    return [(length, alike) for length, alike in said]


def _real(trainer: GrpoTrainer, played: Played) -> tuple[Backward, list[Inputs]]:
    """The gradient of the step, and what each of this process's passes was given."""
    passes: list[Inputs] = []

    def noting(compute: Any, model: Any, inputs: Inputs, *args: Any, **kwargs: Any) -> Any:
        passes.append(dict(inputs))
        return compute(model, inputs, *args, **kwargs)

    with Patch(trainer, "compute_loss", noting):
        return backward(trainer, played), passes


def _as_one(trainer: GrpoTrainer, passes: Sequence[Inputs]) -> dict[str, Tensor]:
    """The gradient of the passes of all processes, one after another in one."""
    processes, place = ranks.count(), trainer.accelerator.device
    with alone(trainer):
        trainer.model.zero_grad()
        trainer.current_gradient_accumulation_steps = len(passes) * processes
        for at, own in enumerate(passes):
            tensors = {name: one for name, one in own.items() if isinstance(one, Tensor)}
            for process in range(processes):
                given = {**own, **ranks.of(process, tensors, place)}
                last = (at, process) == (len(passes) - 1, processes - 1)
                trainer.accelerator.gradient_state._set_sync_gradients(last)
                with Patch(trainer, "_prepare_inputs", lambda *_, given=given: given):
                    trainer.training_step(trainer.model_wrapped, [], None)
        return gradient_copies(trainer.model)
