"""Held-out rows of a script's own data, paid by its own reward functions, before and after.

The rows are the same in every arm and on every seed, and so are the random numbers that completions
are drawn with: two evaluations differ by the weights alone. TRL's own code samples, with the
weights that are trained, so that the policy is measured and not a fault of the script's sampler.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, set_seed

from flatline.errors import ConfigError
from flatline.files import write_atomically
from flatline.heldout import FILE, HeldOutScore, lines_of
from flatline.live.hooks import Patch, swapped
from flatline.live.restore.numbers import random_numbers
from flatline.live.trl.departure.asked import asked_of
from flatline.remedies import remedied
from flatline.script.stock import as_shipped
from flatline.spec.rewards import total

ROWS = 32
"""Rows that are held out where a script has no evaluation data of its own."""
LARGEST_SHARE = 0.2
"""Of the training data at most."""
SEED = 20_262
"""Of what is drawn; the same everywhere, which is the point."""
AT_ONCE = 256
"""Completions that are sampled together."""
LOGS = ("_logs", "_metrics", "_pending_extra_logs", "_pending_metrics")
"""What TRL writes down of a batch, whoever asked for it."""

Row = dict[str, Any]


def held_out_of(trainer: Any) -> list[Row]:
    """The script's own evaluation rows, or rows that are taken out of what is trained."""
    given = getattr(trainer, "eval_dataset", None)
    if given is not None and not isinstance(given, dict):
        return _first(given, ROWS)
    data = trainer.train_dataset
    if not hasattr(data, "select"):
        rows = _first(data, ROWS)
        trainer.train_dataset = data.skip(ROWS)
        return rows
    every = max(2, round(1 / LARGEST_SHARE), len(data) // ROWS)
    chosen = range(every - 1, len(data), every)
    if len(chosen) < 2:
        raise ConfigError(
            f"The script's data has {len(data)} rows: too few to hold some out, and no other "
            "outcome is recorded.\nGive the trainer an `eval_dataset`, or take `--outcome reward`."
        )
    kept = [row for row in range(len(data)) if row not in chosen]
    trainer.train_dataset = data.select(kept)
    return [dict(data[row]) for row in chosen][:ROWS]


class HeldOut(TrainerCallback):  # type: ignore[misc]
    """Evaluates when training begins and when it ends."""

    def __init__(
        self, trainer: Any, rows: Sequence[Row], folder: Path, measured_with: Sequence[str]
    ) -> None:
        """`measured_with` are remedies of the reward that are in force while it is measured: what
        misreads answers is no yardstick for either arm."""
        self.scores: list[HeldOutScore] = []
        self._trainer, self._rows, self._folder = trainer, rows, folder
        self._measured_with = measured_with

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._score(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step > self.scores[-1].step:
            self._score(state.global_step)

    def _score(self, step: int) -> None:
        rewards = paid(self._trainer, self._rows, self._measured_with)
        each = len(rewards) // len(self._rows)
        problems = [f"row {k}: {row['prompt']}" for k, row in enumerate(self._rows)]
        self.scores.append(
            HeldOutScore(
                step=step,
                problems=[problem for problem in problems for _ in range(each)],
                rewards=rewards,
            )
        )
        if self._trainer.accelerator.process_index == 0:
            write_atomically(self._folder / FILE, lines_of(self.scores))


def paid(trainer: Any, rows: Sequence[Row], measured_with: Sequence[str]) -> list[float]:
    """What completions of the rows earn, a group of each; the trainer does not notice."""
    group = getattr(trainer, "num_generations_eval", None) or trainer.num_generations
    training, put_back = trainer.model.training, random_numbers()
    logs = {name: copy.deepcopy(vars(trainer)[name]) for name in LOGS if name in vars(trainer)}
    heard: list[torch.Tensor] = []

    def hear(calculate: Any, *args: Any, **kwargs: Any) -> Any:
        heard.append(calculate(*args, **kwargs))
        return heard[-1]

    trainer.model.eval()
    set_seed(SEED)
    try:
        with (
            as_shipped(trainer),
            swapped(trainer, **logs),
            remedied(trainer, measured_with),
            Patch(trainer, "_calculate_rewards", hear),
            torch.no_grad(),
        ):
            some = max(1, AT_ONCE // group)
            for begin in range(0, len(rows), some):
                drawn = [dict(row) for row in rows[begin : begin + some] for _ in range(group)]
                trainer._generate_and_score_completions(drawn)
                heard[-1] = heard[-1][: len(drawn)]  # every process plays them all
    finally:
        trainer.model.train(training)
        put_back()
    asked = asked_of(trainer, trainer.args.per_device_train_batch_size)
    return [float(one) for one in np.nan_to_num(total(asked, torch.cat(heard).double().cpu()))]


def _first(data: Any, count: int) -> list[Row]:
    rows: list[Row] = []
    for row in data:
        if len(rows) == count:
            break
        rows.append(dict(row))
    return rows
