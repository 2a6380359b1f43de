"""The end of the step: gradient, clipping, update, and the schedule of the rate."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.held import is_part, like, named, read, totals, whole
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.live.trl.departure.scored import Row, Scorer
from flatline.live.where.package import TRL, library_of
from flatline.spec import Asked, NotSpecified
from flatline.spec.gradient import Compared, clip_factor, compare
from flatline.spec.loss import bonus, shares
from flatline.spec.numerics import Tolerance
from flatline.spec.ratio import highest_entropy, token_loss
from flatline.spec.scaling import WITHOUT_RATE, Scaling, common_factor, every_step
from flatline.spec.schedule import FACTOR_NOT_RATE, GIVEN, never_begins, other_rate
from flatline.spec.update import adamw, decay_of

Held = dict[str, Tensor]
"""By the name of a weight, what this process holds, in the memory of the host."""
MOST_STEPS = 2000
"""Steps of a schedule that are looked at."""
MOST_ELEMENTS = 2**20
"""Of a weight whose step is worked out: an optimizer does the same to every element, and all of
them, with what the optimizer knows of them, would be a third copy of the training."""
COARSE = 0.1
"""Rounding of the weights, of the length of the step, above which the step cannot be told."""
FORGOTTEN = (
    "After the step the optimizer's state is empty: AdamW keeps running means of the gradient and "
    "of its square from step to step, and every step here is a first one."
)
NOT_THEIRS = ("transformers", TRL, "flatline", "accelerate")
"""Callbacks from here do nothing to a step; the user's own may."""


def trainable(trainer: Any) -> list[tuple[str, Any]]:
    """Names and weights."""
    return named(trainer.model)


def gradients(trainer: Any, largest_norm: float) -> tuple[Held, Held]:
    """What the passes left, and what the optimizer gets after clipping and the user's callbacks."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    scale = 1.0 if scaler is None else float(scaler.get_scale())
    for _, weight in trainable(trainer):
        if weight.grad is not None and scale != 1:
            weight.grad /= scale
    raw = _held(trainer)
    if largest_norm:
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), largest_norm)
    called(trainer, "on_pre_optimizer_step")
    return raw, _held(trainer)


def _held(trainer: Any) -> Held:
    """A copy of the gradients in the host's memory."""
    return {
        name: read(weight.grad).to("cpu", copy=True)
        for name, weight in trainable(trainer)
        if weight.grad is not None
    }


def specified_gradient(
    asked: Asked,
    scorer: Scorer,
    rows: Sequence[Row],
    dealt: Sequence[Sequence[int]],
    advantage_B: Tensor,
    old: Sequence[Tensor] | None,
    reference: Sequence[Tensor] | None,
    corrected: Sequence[Tensor] | None = None,
) -> None:
    """Leaves the gradient of the whole step on the weights: each row alone, one after another.
    `dealt` says which rows share a pass."""
    tokens = sum(int(row.mask_T.sum()) for row in rows)
    for members in dealt:
        masks = [rows[k].mask_T for k in members]
        share = shares(asked, [int(mask_T.sum()) for mask_T in masks], tokens)
        chosen: list[Tensor | None] = [None] * len(members)
        if asked.entropy_share < 1:
            with torch.no_grad():
                entropies = [scorer(rows[k])[1].cpu() for k in members]
            chosen = list(highest_entropy(asked, entropies, masks))
        for at, k in enumerate(members):
            if not rows[k].mask_T.any():
                continue
            new_T, entropy_T = scorer(rows[k])
            mask_T = rows[k].mask_T.to(new_T.device)
            kept = chosen[at]
            loss_T = token_loss(
                asked,
                new_T=new_T,
                old_T=new_T.detach() if old is None else old[k],
                reference_T=None if reference is None else reference[k],
                mask_T=mask_T,
                advantage=advantage_B[k].to(new_T),
                chosen_T=None if kept is None else kept.to(new_T.device),
                corrected_T=None if corrected is None else corrected[k],
            )
            loss = share[at] * (loss_T * mask_T).sum()
            if asked.entropy_bonus:
                counted = [
                    mask if own is None else own for mask, own in zip(masks, chosen, strict=True)
                ]
                in_pass = sum(int(one.sum()) for one in counted)
                loss = loss - bonus(asked, entropy_T[counted[at].to(new_T.device)], in_pass)
            loss.backward()  # type: ignore[no-untyped-call]


def _against(trainer: Any, found: Held) -> Compared:
    """A held gradient beside the one on the weights."""
    weights = [(name, weight, weight.grad) for name, weight in trainable(trainer)]
    return compare(
        (name, whole(found.get(name), weight), whole(gradient, weight))
        for name, weight, gradient in weights
    )


def judge_gradient(
    trainer: Any, left: Held, given: Held, asked: Asked, limit: Tolerance
) -> StageFound:
    """What the passes left and what the optimizer got, each beside the specified gradient, which
    is on the weights."""
    raw, handed = _against(trainer, left), _against(trainer, given)
    if raw.both_zero:
        return unknown("gradient", "The specified gradient is 0: no reward differs in its group.")
    known = [w for _, w in trainable(trainer) if w.grad is not None]
    squares = totals([float(read(w.grad).double().square().sum()) for w in known], known)
    factor = clip_factor(sum(squares) ** 0.5, asked.largest_norm)
    for where, one, times in (
        ("The backward passes leave", raw, 1.0),
        ("After clipping and callbacks the optimizer gets", handed, factor),
    ):
        length = one.length / times
        if not (1 - one.cosine <= limit.cosine and abs(length - 1) <= limit.length):
            turned = " What was rewarded becomes less likely." if one.cosine < 0 else ""
            return departs(
                "gradient",
                f"{where} another gradient than the specified one: cosine {one.cosine:.4g} "
                f"(expected 1), length {length:.4g} times the specified one.{turned}",
                f"the largest difference is in `{one.worst}`",
                measured=one.cosine,
                limit=limit.cosine,
            )
    return same(
        "gradient",
        f"The specified gradient to 1 - cosine {max(0.0, 1 - raw.cosine):.1g} and a length of "
        f"{raw.length:.6g}.",
        max(0.0, 1 - raw.cosine),
        limit.cosine,
    )


def given_optimizer(trainer: Any) -> str:
    """An optimizer that was handed to the trainer rather than asked for by arguments, in words."""
    if trainer.optimizer is not None and not trainer.state.global_step:
        return "an optimizer that was given to the trainer"
    return "an optimizer class of its own" if _made_by_class(trainer) else ""


def _made_by_class(trainer: Any) -> bool:
    return getattr(trainer, "optimizer_cls_and_kwargs", None) is not None


def _some(part: Tensor) -> Tensor:
    """At most `MOST_ELEMENTS` of its elements, evenly spread."""
    return part.flatten()[:: -(-part.numel() // MOST_ELEMENTS) or 1]


@dataclass(slots=True)
class Before:
    """Some elements of the weights, and what the optimizer knew of them."""

    weights: Held
    means: Held
    squares: Held
    steps: dict[str, int]


def _before(trainer: Any) -> Before:
    """Kept in the host's memory."""
    found = Before({}, {}, {}, {})
    state = getattr(trainer.optimizer, "optimizer", trainer.optimizer).state
    for name, weight in trainable(trainer):
        found.weights[name] = _some(read(weight)).to("cpu", copy=True)
        known = state.get(weight) or {}
        if "exp_avg" in known and "exp_avg_sq" in known:
            found.means[name] = _some(read(known["exp_avg"])).to("cpu", copy=True)
            found.squares[name] = _some(read(known["exp_avg_sq"])).to("cpu", copy=True)
            found.steps[name] = int(known["step"])
    return found


def called(trainer: Any, event: str) -> None:
    """The user's own callbacks; one that needs a whole training is left out."""
    for callback in trainer.callback_handler.callbacks:
        if library_of(type(callback).__module__) in NOT_THEIRS:
            continue
        with suppress(Exception):
            getattr(callback, event)(
                trainer.args,
                trainer.state,
                trainer.control,
                model=trainer.model,
                processing_class=trainer.processing_class,
                optimizer=trainer.optimizer,
                lr_scheduler=trainer.lr_scheduler,
            )


def _step(trainer: Any, handed: Held) -> None:
    """The trainer's optimizer on the gradient that it was handed, at the rate before any schedule,
    and what the user's callbacks do after it."""
    for name, weight in trainable(trainer):
        weight.grad = like(handed.get(name), weight)
    for group in trainer.optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"])
    trainer.optimizer.step()
    called(trainer, "on_optimizer_step")
    trainer.model.zero_grad()
    trainer.state.global_step += 1
    called(trainer, "on_step_end")


def judge_update(trainer: Any, asked: Asked, handed: Held, limit: Tolerance) -> StageFound:
    """What the step does to each weight, beside AdamW by its definition on the same gradient."""
    inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    if type(inner).__name__ != "AdamW":
        return unknown("update", f"Not specified: the optimizer {type(inner).__name__}.")
    if len({group.get("initial_lr", group["lr"]) for group in inner.param_groups}) > 1:
        return unknown("update", "Not specified: rates that differ by weight.")
    rounded = _coarser_than_the_base(trainer)
    if rounded is not None:
        return rounded
    before = _before(trainer)
    _step(trainer, handed)
    now = dict(trainable(trainer))
    if not inner.state and any(handed.get(name) is not None for name in now):
        return departs("update", FORGOTTEN)
    squares: list[list[float]] = []
    for name, kept in before.weights.items():
        part = _some(read(now[name]))
        old, gradient = kept.to(part.device), _at(handed.get(name), part.device)
        expected = old.double()
        if gradient is not None:
            expected = adamw(
                asked,
                old,
                _some(gradient),
                rate=asked.learning_rate,
                decay=decay_of(asked, name),
                step=before.steps.get(name, 0) + 1,
                mean=_at(before.means.get(name), part.device),
                square=_at(before.squares.get(name), part.device),
            )
        ways = (part - expected, expected - old.double(), part.double() - old.double(), old)
        stands_for = read(now[name]).numel() / max(1, len(part))
        squares.append([stands_for * float(way.double().square().sum()) for way in ways])
    pairs: list[tuple[str, float, float, float]] = []
    moved = wanted = coarse = 0.0
    each = [totals([one[at] for one in squares], list(now.values())) for at in range(4)]
    for name, off2, size2, went2, old2 in zip(before.weights, *each, strict=True):
        rounding = torch.finfo(before.weights[name].dtype).eps * old2**0.5
        moved, wanted, coarse = moved + went2, wanted + size2, coarse + rounding**2
        pairs.append((name, max(0.0, off2**0.5 - rounding), size2**0.5, went2**0.5))
    apart = sum(off**2 for _, off, _, _ in pairs) ** 0.5
    scale = wanted**0.5
    if not scale:
        return unknown("update", "The specified step is 0.")
    if coarse**0.5 > COARSE * scale:
        return unknown("update", "The weights are too coarse to tell a step from its rounding.")
    if apart <= limit.update * scale:
        text = f"Every weight moves as AdamW says, to {apart / scale:.1g} of the step."
        return same("update", text, apart / scale, limit.update)
    name, _, size, went = max(pairs, key=lambda pair: pair[1])
    still = sum(1 for _, _, want, did in pairs if want and not did)
    stuck = f" {still} of {len(pairs)} weights do not move at all." if still else ""
    return departs(
        "update",
        f"The step moves the weights by {moved**0.5:.4g}, AdamW at the rate asked for by "
        f"{scale:.4g}, and they differ by {apart / scale:.2g} of it.{stuck}",
        f"`{name}` should move by {size:.4g} and moves by {went:.4g}",
        measured=apart / scale,
        limit=limit.update,
    )


def judge_any_step(trainer: Any, handed: Held) -> StageFound | None:
    """A step of whatever optimizer that climbs its gradient, or takes the same sizeable part from
    all weights; None where it does neither, or where this process holds only parts of them."""
    weights = trainable(trainer)
    if any(is_part(weight) for _, weight in weights):
        return None
    before = {name: _some(read(weight)).to("cpu", copy=True) for name, weight in weights}
    _step(trainer, handed)
    each = [(before[name].double(), _some(read(now)).cpu().double()) for name, now in weights]
    return _climbs(weights, each, handed) or _scales(trainer, weights, each)


Moves = list[tuple[Tensor, Tensor]]
"""Some elements of each weight, before a step and after it."""


def _climbs(weights: Sequence[tuple[str, Any]], each: Moves, handed: Held) -> StageFound | None:
    """The first step of every optimizer goes down the gradient that it is given."""
    dot = moved2 = gradient2 = 0.0
    for (name, _), (old, new) in zip(weights, each, strict=True):
        gradient = handed.get(name)
        if gradient is None:
            continue
        way, slope = new - old, _some(gradient).cpu().double()
        dot += float((way * slope).sum())
        moved2 += float(way.square().sum())
        gradient2 += float(slope.square().sum())
    cosine = dot / (moved2 * gradient2) ** 0.5 if moved2 and gradient2 else 0.0
    if cosine < CLIMBS:
        return None
    text = f"A step goes up the gradient of the loss (cosine {cosine:.2f}), not down."
    found = departs("update", text, measured=cosine, fix=TURN_AROUND)
    headline = "Your optimizer goes up the loss: what is rewarded becomes less likely."
    return replace(found, direct=True, expected="below 0", headline=headline)


def _scales(trainer: Any, weights: Sequence[tuple[str, Any]], each: Moves) -> StageFound | None:
    squares = [float(old.square().sum()) for old, _ in each]
    dots = [float((old * new).sum()) for old, new in each]
    moved = np.array([float((new - old).norm()) for old, new in each])
    norms = np.sqrt(squares)
    factor = np.array(
        [dot / norm if norm else np.nan for dot, norm in zip(dots, squares, strict=True)]
    )
    along = np.abs(factor - 1) * norms / np.where(moved > 0, moved, 1.0)
    size = np.array([now.numel() for _, now in weights], dtype=float)
    rate = max(float(group["lr"]) for group in trainer.optimizer.param_groups)
    found = common_factor(Scaling(factor=factor, along=np.nan_to_num(along), size=size), rate)
    if found is None or found > 1:
        return None
    text = f"{every_step(found)}; the learning rate is {rate:.3g}."
    return replace(departs("update", text, measured=found), direct=True, fix=WITHOUT_RATE)


def _coarser_than_the_base(trainer: Any) -> StageFound | None:
    """Weights that are trained in 16 bits over frozen ones in float32: nobody asks for that. Where
    the base is coarse, or quantised, they may be."""
    kinds: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for weight in trainer.model.parameters():
        kinds[weight.requires_grad].add(weight.dtype)
    half = kinds[True] and kinds[True] <= {torch.bfloat16, torch.float16}
    if not half or kinds[False] != {torch.float32}:
        return None
    dtype = str(next(iter(kinds[True]))).removeprefix("torch.")
    return departs(
        "update",
        f"{KEPT}{dtype} over a base in float32: steps are rounded away.",
    )


CLIMBS = 0.2
"""Cosine of a step with its gradient. Healthy: below 0, or near it where most of the step is decay
of the weights, which has no direction."""
TURN_AROUND = "Take `maximize=True`, or a minus too many, out of the optimizer or the loss."
KEPT = "The trained weights are kept in "
"""How a finding about it begins; the precision follows."""


def _at(tensor: Tensor | None, place: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(place)


OTHER_SCHEDULE = "The schedule is another than "
"""How a finding about it begins."""


def judge_schedule(trainer: Any, asked: Asked) -> StageFound | None:
    """The rate in force over the whole training; None where it is as asked, or not known."""
    if asked.steps <= 0:
        return None
    if trainer.lr_scheduler is not None:
        return _given_schedule(trainer, asked)
    found = list(rates(trainer, asked))
    own = library_of(type(trainer).create_scheduler.__module__) not in NOT_THEIRS
    wanted = replace(asked, schedule=GIVEN) if own else asked
    try:
        other = other_rate(wanted, range(len(found)), found)
    except NotSpecified:
        return None
    if other is None:
        return None
    return departs(
        "update",
        f"{OTHER_SCHEDULE}{asked.schedule!r}: at step {other.step} of {asked.steps} "
        f"the rate is {other.found:.3g}, {other.wanted:.3g} was asked for.",
        f"rates at steps 0, {other.step // 2} and {other.step}: {found[0]:.3g}, "
        f"{found[other.step // 2]:.3g}, {other.found:.3g}",
        measured=other.found,
    )


def _given_schedule(trainer: Any, asked: Asked) -> StageFound | None:
    """Of functions that were handed over with the optimizer, while none has been taken a step."""
    schedule = trainer.lr_scheduler
    functions, base = getattr(schedule, "lr_lambdas", None), getattr(schedule, "base_lrs", None)
    if not functions or not base or trainer.state.global_step:
        return None
    groups = list(zip(functions, base, strict=True))
    steps = range(min(asked.steps, MOST_STEPS))
    found = [max(float(rate * factor(step)) for factor, rate in groups) for step in steps]
    wanted = replace(asked, schedule=GIVEN, learning_rate=float(max(base)))
    other = other_rate(wanted, steps, found)
    if other is None:
        return None
    return departs(
        "update",
        f"The schedule that the trainer was given has a rate of {other.found:.3g} at step "
        f"{other.step + 1} of {asked.steps} and as little to the end; the optimizer's rate is "
        f"{other.wanted:.3g}.",
        f"the highest rate of all steps is {max(found):.3g}",
        measured=other.found,
        fix=FACTOR_NOT_RATE if never_begins(found, other.wanted) else None,
    )


def rates(trainer: Any, asked: Asked) -> Iterator[float]:
    """Of a schedule that is made as the trainer makes its own, for an optimizer of no weight."""
    nothing = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=asked.learning_rate)
    optimizer, trainer.optimizer = trainer.optimizer, nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            schedule = trainer.create_scheduler(asked.steps, optimizer=nothing)
            for _ in range(min(asked.steps, MOST_STEPS)):
                yield float(nothing.param_groups[0]["lr"])
                schedule.step()
        finally:
            trainer.optimizer, trainer.lr_scheduler = optimizer, None
