"""Rows beyond the first batch: the order that the seed gives, and the generation after this one.

Nothing is sampled: TRL deals out numbers where completions would be.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from flatline.live.hooks import Patch
from flatline.live.records import DataOrder
from flatline.live.stage_found import StageFound, departs, same
from flatline.live.trl.measure.scoring import first_rows
from flatline.live.where.package import TRL, library_of
from flatline.spec import Asked

SOME = 2000
"""Row numbers of an order that are compared."""
ENOUGH = 8
"""Different rows below which two seeds may give one order by chance."""

MOST = 200_000
"""Rows of an epoch that are counted."""
LENGTH = "An epoch is said to have "
DEALT = "What is dealt out to passes is wrong: the "
SEED = "The order of the data does not follow the seed"
LOADED = "The dataloader gives a generation "
REPEATED = "The sampler and the trainer disagree about when a generation is over: "
"""How findings begin: that an epoch ends elsewhere, that rows are dealt out otherwise, that their
order is another, that there are more or fewer of them, and that prompts come again or are lost."""
UNMIXED = "completions of a generation are dealt out in the order in which they were sampled"
"""Words of a finding that a generation is not shuffled."""
SHUFFLES = ("shuffle_sequence_dict", "shuffle_tensor_dict")
"""With one of these TRL shuffles a generation before it deals it out; releases up to 0.17 have
none, and do not shuffle."""


def rows_depart(
    trainer: Any, asked: Asked, order: DataOrder | None, rows: int
) -> StageFound | None:
    """None where order and generations are as asked for, or where a trainer has ways of its own.
    `rows` is what the dataloader gave for the first generation."""
    looks: tuple[Callable[[], StageFound | None], ...] = (
        lambda: _loading_departs(trainer, rows),
        lambda: _order_departs(trainer, order),
        lambda: _loads_others(trainer, order),
        lambda: _length_departs(trainer),
        lambda: _dealing_departs(trainer, asked),
        lambda: _repeating_departs(trainer, asked),
    )
    for look in looks:  # what one cannot do must not cost what the others find
        with suppress(Exception):
            found = look()
            if found is not None:
                return found
    return None


def _loading_departs(trainer: Any, rows: int) -> StageFound | None:
    """None where a generation of this process has as many rows as its passes are to train on.
    Accelerate may be asked to give each process a share of them."""
    args = trainer.args
    due = args.train_batch_size * args.steps_per_generation
    if rows == due or getattr(trainer.accelerator, "split_batches", False):
        return None
    return departs(
        "rows",
        f"{LOADED}{rows} rows; {due} were asked for.",
        f"per_device_train_batch_size {args.per_device_train_batch_size}, "
        f"steps_per_generation {args.steps_per_generation}",
        measured=rows,
    )


def _loads_others(trainer: Any, order: DataOrder | None) -> StageFound | None:
    """None where the dataloader gives a generation the rows whose numbers the sampler gives for the
    training data. Both are TRL's, and one process has them all; of a stream nothing is known."""
    names = ("get_train_dataloader", "_get_train_sampler")
    own = any(not _is_of_trl(trainer, name) for name in names)
    if order is None or own or trainer.accelerator.num_processes > 1:
        return None
    loaded = [row["prompt"] for row in first_rows(trainer)]
    due = list(islice(trainer._get_train_sampler(), len(loaded)))
    dataset = trainer.train_dataset
    asked, again = ([dataset[number]["prompt"] for number in due] for _ in range(2))
    if asked != again or loaded == asked:  # data may be made anew each time that it is asked for
        return None
    strange = [k for k, one in enumerate(loaded) if one != asked[k]]
    first = strange[0]
    return departs(
        "rows",
        f"{LOADED}other rows than its sampler says: {len(strange)} of the first {len(loaded)}.",
        f"row {first} is to be row {due[first]} of the data, {str(asked[first])[-60:]!r}, and is "
        f"{str(loaded[first])[-60:]!r}",
        measured=len(strange) / len(loaded),
    )


def _is_of_trl(trainer: Any, name: str) -> bool:
    """Whether a method of the trainer is TRL's or transformers' own."""
    module = str(getattr(type(trainer), name).__module__)
    return name not in vars(trainer) and library_of(module) in (TRL, "transformers")


def _is_trls(sampler: Any) -> bool:
    return library_of(type(sampler).__module__) == TRL


def _order_departs(trainer: Any, order: DataOrder | None) -> StageFound | None:
    """None where the order of the data is that of the file, or follows the seed, as asked for. A
    sampler of the user's own may have any order."""
    own = not _is_trls(trainer._get_train_sampler())
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


def _length_departs(trainer: Any) -> StageFound | None:
    """None where an epoch is as long as it says, since the training ends it after that many, or
    where this run ends before it. Some releases count the rows that are left over when no whole
    generation can be filled."""
    told, rows = _length(trainer)
    if told == rows or _ends_before(trainer, told):
        return None
    if told > rows and trainer.args.max_steps > 0:  # the number of steps does not come from it
        return None
    return departs("rows", f"{LENGTH}{told} rows, and it has {rows}.", measured=told)


def early_end(trainer: Any) -> StageFound | None:
    """What is wrong about the length of an epoch and does not matter to a run that ends before."""
    with suppress(Exception):
        told, rows = _length(trainer)
        if told < rows and _ends_before(trainer, told):
            text = (
                f"{LENGTH}{told} rows, and it has {rows}: longer runs than this one, of "
                f"{trainer.args.max_steps} steps, would begin anew before they have seen them all."
            )
            return replace(same("rows", text, told), added=True)
    return None


def _length(trainer: Any) -> tuple[int, int]:
    """Rows that an epoch is said to have, and those that it has; twice the same number where that
    is as it must be."""
    sampler = trainer._get_train_sampler()
    if not _is_trls(sampler):
        return 0, 0
    told, rows = len(sampler), sum(1 for _ in islice(sampler, MOST))
    left_over = sampler.batch_size * sampler.mini_repeat_count * sampler.repeat_count
    right = rows <= told < rows + left_over or (rows == MOST and told > rows)
    return (rows, rows) if right else (told, rows)


def _ends_before(trainer: Any, rows: int) -> bool:
    """Whether the run has a number of steps of its own, and they need no more than so many rows."""
    args = trainer.args
    of_step = args.train_batch_size * args.steps_per_generation * args.world_size
    of_step *= args.gradient_accumulation_steps
    return bool(0 < args.max_steps * of_step <= rows)


def _dealing_departs(trainer: Any, asked: Asked) -> StageFound | None:
    """None where each generation is dealt out, all of it before any of it again, as often as asked,
    before the next one is sampled."""
    once = asked.passes_in_generation
    dealt = dealt_out(trainer, asked)
    for at in range(0, len(dealt), once):
        number = at // (once * asked.iterations)
        found = _wrong_rows(number, [row for rows in dealt[at : at + once] for row in rows], asked)
        if found is not None:
            return found
    return _unmixed(dealt, asked) if _shuffles(trainer) else None


def _unmixed(dealt: Sequence[Sequence[int]], asked: Asked) -> StageFound | None:
    """None where passes are given rows of a generation in an order drawn by chance. Where a
    generation is one pass, its order decides nothing."""
    once, again = asked.passes_in_generation, asked.passes_in_generation * asked.iterations
    size = asked.rows_in_pass * once
    made = [
        [row for rows in dealt[at : at + once] for row in rows]
        for at in range(0, len(dealt), again)
    ]
    if once < 2 or size < ENOUGH or any(rows != sorted(rows) for rows in made):
        return None
    return departs(
        "rows",
        f"{DEALT}{UNMIXED}, so that each of its {once} passes holds whole groups; TRL shuffles "
        "them first.",
        f"the passes of the first generation are given {[rows[:4] for rows in dealt[:once]]} ...",
    )


def _repeating_departs(trainer: Any, asked: Asked) -> StageFound | None:
    """None where every generation samples for prompts of its own, and every prompt that the sampler
    gives is sampled for. Only of a sampler of TRL's, which repeats the prompts of a generation for
    as long as that is trained on, and of two generations of one epoch."""
    if not _is_trls(trainer._get_train_sampler()):
        return None
    args, processes = trainer.args, trainer.accelerator.num_processes
    size = args.train_batch_size * asked.passes_in_generation * processes
    calls = asked.passes_in_generation * asked.iterations
    order = list(islice(trainer._get_train_sampler(), 2 * calls * size))
    if len(order) < 2 * calls * size:
        return None
    given = [set(order[at : at + size]) for at in range(0, len(order), size)]
    first, second = given[0], given[calls]
    lost = set[int]().union(*given[:calls]) - first
    if not lost and not first & second:
        return None
    what = (
        f"{len(lost)} prompts are given to it while it still trains on others, and are never "
        "sampled for."
        if lost
        else f"{len(first & second)} of the {len(second)} prompts of the second generation are "
        "those of the first again."
    )
    return departs(
        "rows",
        f"{REPEATED}{what}",
        f"num_iterations {asked.iterations}; generations are sampled every {calls} passes, for "
        f"rows {sorted(first)[:4]} ..., then {sorted(second)[:4]} ...",
        measured=float(len(lost or first & second)),
    )


def _shuffles(trainer: Any) -> bool:
    """Whether it is TRL that deals out, in a release that shuffles."""
    module = type(trainer)._prepare_inputs.__module__
    known = vars(sys.modules[module]) if _is_of_trl(trainer, "_prepare_inputs") else {}
    return any(name in known for name in SHUFFLES)


def _wrong_rows(number: int, rows: Sequence[int], asked: Asked) -> StageFound | None:
    size = asked.rows_in_pass * asked.passes_in_generation
    due = range(number * size, (number + 1) * size)
    if sorted(rows) == [*due]:
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
        f"{sorted(set(rows))[:8]} ({len(rows)} in all, {size} expected)",
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
    begin = 0 if trainer.state.global_step else trainer._step
    trainer._step, trainer._buffered_inputs = begin, None
    trainer.model.train()
    found = []
    try:
        with Patch(trainer, "_generate_and_score_completions", generate):
            for number in range(passes):
                # Up to 0.24 TRL counts itself, in this very method.
                trainer._step = begin + number
                batch = trainer._prepare_inputs([{}] * size)
                found.append(batch["completion_ids"].tolist())
    finally:
        trainer._step, trainer._buffered_inputs = before
    return found


def _rows(trainer: Any) -> list[int]:
    return list(islice(trainer._get_train_sampler(), SOME))
