"""What is paid: each row what its own completion earned, and a right answer as right."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from flatline.errors import ConfigError
from flatline.hypotheses.answers import states
from flatline.live.batch import GOLD_NAMES
from flatline.live.hooks import Patch
from flatline.live.trl.departure.asked import asked_of
from flatline.live.trl.departure.data import hearing
from flatline.live.trl.gold import gold_names, parameters
from flatline.remedies.base import Tally, Undo
from flatline.spec.numerics import PAID
from flatline.spec.rewards import weights


def paid_as_earned(trainer: Any, tally: Tally) -> list[Undo]:
    """Each row gets what the functions paid for it, and each function the weight asked for."""

    def around(calculate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with hearing(trainer) as heard:
            arrived_BF = calculate(*args, **kwargs)
        right_BF = arrived_BF.clone()
        for at, (_, paid) in heard.calls.items():
            values = [math.nan if one is None else float(one) for one in paid]
            own_B = torch.tensor(values, dtype=torch.float32, device=arrived_BF.device)
            right_BF[:, at] = trainer.accelerator.gather(own_B)
        apart = (right_BF.nan_to_num() - arrived_BF.nan_to_num()).abs()
        off = bool((apart > PAID * (1 + right_BF.nan_to_num().abs())).any())
        off |= not torch.equal(right_BF.isnan(), arrived_BF.isnan())
        return tally.chosen(arrived_BF, right_BF, off)

    return [Patch(trainer, "_calculate_rewards", around).undo, *_weights(trainer, tally)]


def _weights(trainer: Any, tally: Tally) -> list[Undo]:
    asked = asked_of(trainer, trainer.args.per_device_train_batch_size)
    own_F = trainer.reward_weights
    right_F = torch.from_numpy(weights(asked, len(trainer.reward_funcs))).to(own_F)
    off = own_F.shape != right_F.shape or not torch.allclose(own_F, right_F)
    tally.count(off)
    if not off:
        return []
    trainer.reward_weights = right_F
    return [lambda: setattr(trainer, "reward_weights", own_F)]


def right_answers_paid(trainer: Any, tally: Tally) -> list[Undo]:
    """An answer that is marked and equals gold is never paid as a wrong one, nor another number as
    a right one. What marks no answer is paid as the function pays it."""
    at, gold = _judge(trainer)
    function = trainer.reward_funcs[at]
    lowest, highest = math.inf, -math.inf

    @functools.wraps(function)
    def mended(*args: Any, **given: Any) -> list[Any]:
        nonlocal lowest, highest
        own = list(function(*args, **given))
        known = [float(one) for one in own if one is not None]
        lowest, highest = min([lowest, *known]), max([highest, *known])
        right = highest if highest > lowest else 1.0
        texts = [_text(one) for one in given["completions"]]
        paid = []
        for pay, text, answer in zip(own, texts, given[gold], strict=True):
            stated = None if pay is None else states(text, str(answer))
            if stated and pay <= lowest:
                pay = right
            elif stated is False and highest > lowest and pay >= highest:
                pay = lowest
            paid.append(pay)
        tally.count(paid != own)
        return paid

    trainer.reward_funcs[at] = mended
    return [lambda: trainer.reward_funcs.__setitem__(at, function)]


def _judge(trainer: Any) -> tuple[int, str]:
    """The reward function that asks for gold by its name, and that name."""
    columns = getattr(trainer.train_dataset, "column_names", None) or []
    found, names = [], gold_names(trainer)
    for at, function in enumerate(trainer.reward_funcs):
        if isinstance(function, torch.nn.Module) or inspect.iscoroutinefunction(function):
            continue
        asked = parameters(function)
        found += [(at, name) for name in names if name in asked and name in columns][:1]
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"{len(found)} reward functions take a column with the right answer by its name "
        f"({', '.join(GOLD_NAMES[:4])}, ...), and exactly one must: "
        "the remedy corrects what it reads.\n"
        "Name that column as an argument of the function that judges answers: "
        "`def correct(completions, answer, **kwargs)`."
    )


def _text(completion: Any) -> str:
    """The last thing that the model said."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1].get("content") or "") if completion else ""
