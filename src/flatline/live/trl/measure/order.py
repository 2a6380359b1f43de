"""Which prompts the trainer will visit, read off its own sampler without touching the data.

TRL's loader gives one chunk of rows per backward pass, and a generation is made of every
`steps_per_generation x num_iterations`-th chunk; the chunks between are repeats that only keep the
count. Derived sizes that were computed before somebody changed the settings break exactly this.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from flatline.errors import NotRecorded
from flatline.live.batch import PROMPT_NAMES
from flatline.live.records import DataOrder, Floats, Problems
from flatline.live.step_records import ShortStep
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.where.package import TRL, library_of

AT_MOST = 5_000_000
"""Row numbers read of one epoch."""
MOST = 20_000
"""Rows whose prompts are compared."""
_HOPS = ("hops", "n_hops", "num_hops")


def data_order(trainer: GrpoTrainer, steps: int, hops: Mapping[str, int]) -> DataOrder:
    """The first `steps` optimizer steps in detail, the epoch as a whole in coverage."""
    if not hasattr(trainer.train_dataset, "__len__"):
        raise NotRecorded("the order of streamed data")
    indices = np.fromiter(islice(trainer._get_train_sampler(), AT_MOST), dtype=np.int64)
    generations = _generations(trainer, indices)
    size, group = len(trainer.train_dataset), trainer.num_generations
    heads, chunk = [rows[::group] for _, rows in generations], _chunk(trainer) // group
    visited = np.unique(np.concatenate(heads)) if heads else np.empty(0)
    early = [(step, rows[::group]) for step, rows in generations if step <= steps]
    step_N = np.concatenate([np.full(len(rows), step) for step, rows in early])
    prompt_N = np.concatenate([rows for _, rows in early])
    each = np.unique(step_N)
    return DataOrder(
        step_N=step_N,
        prompt_N=prompt_N,
        hops_N=_hops(trainer.train_dataset, prompt_N, hops),
        unique_per_step=np.array([len(set(prompt_N[step_N == step])) for step in each]),
        groups_per_step=np.array([(step_N == step).sum() for step in each]),
        groups_whole=all(_whole(rows, group) for _, rows in generations),
        dataset_size=size,
        visited_share=len(visited) / size if size else float("nan"),
        epoch_complete=len(indices) < AT_MOST,
        weighted=_own_sampler(trainer) and len(visited) < sum(map(len, heads)) >= size - chunk,
    )


def _own_sampler(trainer: GrpoTrainer) -> bool:
    made = str(getattr(type(trainer)._get_train_sampler, "__module__", ""))
    return library_of(made) not in (TRL, "transformers")


def short_step(trainer: GrpoTrainer) -> ShortStep | None:
    """The last step of an epoch, where the passes that are left are not enough for a whole one."""
    args, usual = trainer.args, trainer.args.gradient_accumulation_steps
    if usual < 2 or not hasattr(trainer.train_dataset, "__len__"):
        return None
    rows = sum(1 for _ in islice(trainer._get_train_sampler(), AT_MOST))
    steps, passes = divmod(rows // _chunk(trainer), usual)
    cut = 0 < args.max_steps <= steps or rows == AT_MOST
    return None if cut or not passes else ShortStep(passes=passes, usual=usual, steps=steps + 1)


def _chunk(trainer: GrpoTrainer) -> int:
    """Rows that the loader gives for one backward pass, of all processes."""
    args = trainer.args
    return int(trainer._train_batch_size * args.steps_per_generation * args.world_size)


def _generations(trainer: GrpoTrainer, indices: Any) -> list[tuple[int, Any]]:
    """Optimizer step (from 1) and rows of every generation of the epoch."""
    args = trainer.args
    chunk = _chunk(trainer)
    every = args.steps_per_generation * trainer.num_iterations
    chunks = len(indices) // chunk
    return [
        (1 + k // args.gradient_accumulation_steps, indices[k * chunk : (k + 1) * chunk])
        for k in range(0, chunks, every)
    ]


def _whole(rows: Any, group: int) -> bool:
    if len(rows) % group:
        return False
    by_group = rows.reshape(-1, group)
    return bool((by_group == by_group[:, :1]).all())


def _column(dataset: Any, names: tuple[str, ...], rows: Any) -> list[Any] | None:
    """Values of the first of the columns that the data has."""
    columns = getattr(dataset, "column_names", None) or []
    name = next((name for name in names if name in columns), None)
    return None if name is None else [dataset[int(row)][name] for row in rows]


def _hops(dataset: Any, rows: Any, known: Mapping[str, int]) -> Floats | None:
    found = _column(dataset, _HOPS, rows)
    if found is None and known:
        ids = _column(dataset, PROMPT_NAMES, rows)
        found = [known.get(str(id), np.nan) for id in (rows if ids is None else ids)]
    return None if found is None else np.array(found, dtype=np.float64)


def planned_steps(settings: Mapping[str, Any], epochs: float | None) -> int | None:
    """Optimizer steps of the run; None where neither they nor what an epoch has are known."""
    if (settings.get("max_steps") or 0) > 0:
        return int(settings["max_steps"])
    size, prompts = settings.get("dataset_size"), settings.get("prompts_per_step")
    if not epochs or not size or not prompts:
        return None
    return max(1, int(epochs * size / prompts * (settings.get("num_iterations") or 1)))


def problems(trainer: GrpoTrainer) -> Problems:
    """The prompts of the trainer's datasets."""
    held = getattr(trainer, "eval_dataset", None)
    if held is None:
        return Problems(training=(), heldout=())
    return Problems(training=_prompts(trainer.train_dataset), heldout=_prompts(held))


def _prompts(dataset: Any) -> tuple[str, ...]:
    if not hasattr(dataset, "column_names") or "prompt" not in dataset.column_names:
        raise NotRecorded("eval_dataset.prompt")
    size = min(len(dataset), MOST)
    return tuple(str(prompt) for prompt in dataset.select(range(size))["prompt"])
