"""Rows beyond the first batch: the order that the seed gives, and the generation after this one.

Nothing is sampled: TRL deals out numbers where completions would be.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import torch

from flatline.live.hooks import Patch
from flatline.live.records import DataOrder
from flatline.live.stage_found import StageFound, departs
from flatline.spec import Asked

SOME = 2000
"""Row numbers of an order that are compared."""
ENOUGH = 8
"""Different rows below which two seeds may give one order by chance."""

DEALT = "What is dealt out to passes is wrong: the "
SEED = "The order of the data does not follow the seed"
"""How findings begin: that rows are dealt out otherwise, and that their order is another."""


def rows_depart(trainer: Any, asked: Asked, order: DataOrder | None) -> StageFound | None:
    """None where order and generations are as asked for, or where a trainer has ways of its own."""
    with suppress(Exception):
        return _order_departs(trainer, order) or _dealing_departs(trainer, asked)
    return None


def _order_departs(trainer: Any, order: DataOrder | None) -> StageFound | None:
    """None where the order of the data is that of the file, or follows the seed, as asked for. A
    sampler of the user's own may have any order."""
    own = not type(trainer._get_train_sampler()).__module__.startswith("trl.")
    if order is None or own or order.dataset_size < ENOUGH:
        return None
    first = _rows(trainer)
    if not trainer.args.shuffle_dataset:
        heads = list(dict.fromkeys(first))
        if heads == list(range(len(heads))):
            return None
        return departs(
            "rows",
            "The data is not visited in its own order, which `shuffle_dataset=False` asks for.",
            f"the first rows are {heads[:8]}",
        )
    if first != _rows(trainer):
        return departs("rows", "Two samplers of one seed give the rows in two orders.")
    seed = trainer.args.seed
    trainer.args.seed = seed + 1
    other = _rows(trainer)
    trainer.args.seed = seed
    if first != other:
        return None
    return departs(
        "rows",
        f"{SEED}: seeds {seed} and {seed + 1} give one.",
        f"with either the first rows are {list(dict.fromkeys(first))[:8]}",
    )


def _dealing_departs(trainer: Any, asked: Asked) -> StageFound | None:
    """None where each generation is dealt out, all of it, as often as asked, before the next one is
    sampled."""
    every = asked.passes_in_generation * asked.iterations
    dealt = dealt_out(trainer, asked)
    for number, passes in enumerate((dealt[:every], dealt[every:])):
        found = _wrong_rows(number, [row for rows in passes for row in rows], asked)
        if found is not None:
            return found
    return None


def _wrong_rows(number: int, rows: Sequence[int], asked: Asked) -> StageFound | None:
    size = asked.rows_in_pass * asked.passes_in_generation
    due = range(number * size, (number + 1) * size)
    if sorted(rows) == sorted([*due] * asked.iterations):
        return None
    strange = sorted(set(rows) - set(due))
    which = "second" if number else "first"
    what = (
        f"trains on completions of {'the one before' if number else 'another'}"
        if strange
        else "does not train on each completion as often as asked"
    )
    return departs(
        "rows",
        f"{DEALT}{which} generation {what}.",
        f"passes over completions {due.start} to {due.stop - 1} are given "
        f"{sorted(set(rows))[:8]} ({len(rows)} in all, {size * asked.iterations} expected)",
        measured=len(rows),
    )


def dealt_out(trainer: Any, asked: Asked) -> list[list[int]]:
    """Numbers of the completions that each pass of two generations would be given."""
    passes = 2 * asked.passes_in_generation * asked.iterations
    size = asked.rows_in_pass * asked.passes_in_generation
    made = 0

    def generate(_: Any, rows: Sequence[Any]) -> dict[str, torch.Tensor]:
        nonlocal made
        made += 1
        return {"completion_ids": torch.arange((made - 1) * size, made * size)}

    before = trainer._step, trainer._buffered_inputs
    trainer._step, trainer._buffered_inputs = 0, None
    trainer.model.train()
    found = []
    try:
        with Patch(trainer, "_generate_and_score_completions", generate):
            for number in range(passes):
                trainer._step = number  # which TRL up to 0.24 counts itself in this very method
                batch = trainer._prepare_inputs([{}] * size)
                found.append(batch["completion_ids"].tolist())
    finally:
        trainer._step, trainer._buffered_inputs = before
    return found


def _rows(trainer: Any) -> list[int]:
    return list(islice(trainer._get_train_sampler(), SOME))
