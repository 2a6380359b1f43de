"""What the `settings` of a loop state, beside what its optimizer and its adapter have."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flatline.live.loop.loop import Loop
from flatline.live.stage_found import StageFound, departs

STATED = "`settings` say "
"""How a finding of this look begins."""
CLOSE = 1e-3
"""By how much two numbers may differ that are meant to be one, relative."""


class _Stated(NamedTuple):
    stage: str
    name: str
    told: float
    has: Sequence[Any]
    """All that could be meant: a schedule changes what an optimizer was made with."""
    whose: str


def judge_settings(loop: Loop) -> StageFound | None:
    """None where all numbers are as stated, as far as they are stated and known."""
    for one in _stated(loop):
        known = [float(each) for each in one.has if isinstance(each, int | float)]
        if known and not any(math.isclose(one.told, each, rel_tol=CLOSE) for each in known):
            return departs(
                one.stage,
                f"{STATED}`{one.name}` {one.told:g}; {one.whose} has {known[0]:g}.",
                measured=known[0],
                fix=f"Make {one.whose} with `{one.name}` {one.told:g}, or state what it has.",
            )
    return None


def maker(loop: Loop, found: StageFound) -> Any:
    """Whose making decided it: the optimizer, or the model; None where neither did."""
    if found.stage == "update":
        return loop.optimizer
    return loop.model if "`lora." in found.text else None


def _stated(loop: Loop) -> Iterator[_Stated]:
    told = {name: one for name, one in loop.settings.items() if one is not None}
    adapter = next(iter(getattr(loop.model, "peft_config", {}).values()), None)
    for name, own in (("r", "r"), ("alpha", "lora_alpha")):
        number = (told.get("lora") or {}).get(name)
        if number is not None and adapter is not None:
            has = [getattr(adapter, own, None)]
            yield _Stated("log-probs", f"lora.{name}", number, has, "the adapter")
    groups = [loop.optimizer.defaults, *loop.optimizer.param_groups]
    for name, own in (("learning_rate", "lr"), ("weight_decay", "weight_decay")):
        if name in told:
            has = [group.get(key) for group in groups for key in (f"initial_{own}", own)]
            yield _Stated("update", name, told[name], has, "the optimizer")
