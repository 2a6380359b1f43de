"""A loop's advantages and loss beside what its `settings` ask for.

The loss of a loop is a function of a batch and of log-probs, so it is asked directly: with old
log-probs and a reference from which the policy has gone known ways, since at its start it is
both. Each token's weight in the loss is then compared with the specified one.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatline.live.departure import adapters
from flatline.live.departure.advantages import judge_advantages
from flatline.live.departure.loss import (
    Pass,
    both_stages,
    judge_loss,
    off_by,
    trained,
    ways_apart,
)
from flatline.live.departure.rights import of_advantages, of_pass
from flatline.live.inputs import Inputs
from flatline.live.loop.loop import Batch, Loop
from flatline.live.loop.stated import STATED, maker
from flatline.live.measure.played import Played
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.live.where.attributes import named_by_callers
from flatline.live.where.place import Where, place_of
from flatline.live.where.ranking import Trail
from flatline.live.where.specified import Right, Specified
from flatline.live.where.tracing import MOST_TIMES, Event, Follower
from flatline.live.where.values import Value
from flatline.spec import STAGES, Asked, NotSpecified
from flatline.spec.numerics import TOLERANCE

PADDED = "Completions continue from"
"""How a finding about padding behind prompts begins."""
ASKS = ("loss_type", "scale_rewards")
"""Settings that say what the loss, and what an advantage, ought to be."""
LIMIT = TOLERANCE["fp32"]
"""Of a loss alone: no model is between what it is given and what it gives."""
AWAY = 0.3
"""Nats to the reference, on either side: every term of the KL is then seen."""
CONSTANT = 0.02
"""By how much a number that is the same everywhere may seem another, relative."""
LOGGED_ALONE = "the gradient does not have it, so it affects the log and not the training."
SHOWN = 5
"""Lines of a finding."""
_UNSAID = "Not specified: `settings` of a Loop do not say what this ought to be."


class _Ways(NamedTuple):
    """How far the policy of a pass has gone, and which token which way."""

    seed: int = 0
    far: float = 1.0
    """From where it sampled, in lengths of the usual way: below 1 most clips are not in force."""
    reference: float = AWAY
    """From its reference, in nats."""


OTHER_WAYS = (_Ways(1, 0.1, 2 * AWAY), _Ways(2, 1.0, AWAY / 3), _Ways(3, 1.5, AWAY))
"""Where a loss is asked again that has the right gradient and another value."""


def asked_of(settings: Mapping[str, Any], batches: Sequence[Batch], group: int) -> Asked:
    """What the settings say of a step; the defaults of the papers where they say nothing."""
    high = settings.get("epsilon_high")
    told: dict[str, Any] = {
        "loss": settings.get("loss_type"),
        "scale": settings.get("scale_rewards"),
        "level": settings.get("importance_sampling_level"),
        "beta": settings.get("beta"),
        "clip_low": settings.get("epsilon"),
        "clip_high": settings.get("epsilon") if high is None else high,
        "longest": settings.get("max_completion_length") or batches[0]["ids"].shape[1],
    }
    known = {name: value for name, value in told.items() if value is not None}
    return Asked(
        group=group,
        passes=len(batches),
        rows_in_pass=len(batches[0]["ids"]),
        passes_in_generation=len(batches),
        **known,
    )


def examine(
    loop: Loop, settings: Mapping[str, Any], batches: Sequence[Batch], group: int
) -> dict[str, StageFound]:
    """Every stage by its name; those that the settings say nothing of are unknown."""
    asked = asked_of(settings, batches, group)
    found = {stage: unknown(stage, _UNSAID) for stage in STAGES}
    if settings.get("scale_rewards") is not None:
        found["advantages"] = judge_advantages(
            asked, _arrived(batches), _all(batches, "advantages")
        )
    if settings.get("loss_type") is not None:
        try:
            found |= both_stages(_loss_of(loop, asked, settings, batches))
        except NotSpecified as missing:
            found["loss"] = unknown("loss", f"Not specified: {missing}.")
    return found


def lines(
    loop: Loop,
    settings: Mapping[str, Any],
    batches: Sequence[Batch],
    found: StageFound,
    played: Played,
) -> tuple[Where, ...]:
    """Lines of the loop that may have made a stage what it is, likeliest first."""
    if found.text.startswith((adapters.BEGUN, adapters.OPENING, adapters.MERGED)):
        made = [place_of(*one) for one in adapters.set_before(loop.model, found)]
        shown = tuple(dict.fromkeys(made))[:SHOWN]
        return shown or _shown(adapters.lines(loop.model, found, LIMIT.weight))
    if found.text.startswith(PADDED):
        return tuple(place_of(*one) for one in named_by_callers(loop.tokenizer))[:SHOWN]
    if found.text.startswith(STATED):
        return tuple(place_of(*one) for one in named_by_callers(maker(loop, found)))[:SHOWN]
    follower = Follower()
    if found.stage == "mask" and settings.get("loss_type") and _says_what_was_written(played):
        found = replace(found, stage="loss")
    if found.stage in ("completions", "log-probs", "delivery"):
        with follower.following(), torch.no_grad():
            loop.scored(batches[0])
        return _shown(follower.events)
    if found.stage == "rewards":
        with follower.following():
            sampled = loop.batches(loop.prompts)
        return _shown(_row_by_row(follower.events, sum(len(one["ids"]) for one in sampled)))
    if found.stage == "mask":
        with follower.following():
            sampled = loop.batches(loop.prompts)
        mask_BT = played.inputs["completion_mask"].double()
        known = [Specified("completion mask", mask_BT)] if len(sampled) == 1 else []
        known += [one for batch in sampled for one in _beside_the_mask(batch, mask_BT.shape[1])]
        trained = [follower.copies.of(one["trained"]) for one in sampled]
        return _placed(follower, known, [one for one in trained if one is not None])
    if found.stage not in ("advantages", "ratio and KL", "loss"):
        return ()
    if found.stage == "advantages":
        with follower.following():
            sampled = loop.batches(loop.prompts)
        group = sum(len(one["ids"]) for one in sampled) // len(loop.prompts)
        asked = asked_of(settings, sampled, group)
        right = list(of_advantages(asked, _arrived(sampled)))
        wrong = [follower.copies.of(one["advantages"]) for one in sampled]
    else:
        asked = asked_of(settings, batches, 1)
        one, wrong = _followed(loop, asked, settings, batches[0], follower)
        right = list(of_pass(asked, one, one.inputs))
    return _placed(follower, right, [one for one in wrong if one is not None])


def judge_padding(loop: Loop, played: Sequence[tuple[Batch, Sequence[int]]]) -> StageFound | None:
    """None where no completion was sampled behind padding. Of each batch it is known with which
    tokens its completions begin."""
    before = [
        (int(ids_L[begin - 1]), bool(seen_L[begin - 1]))
        for batch, begins in played
        if batch.get("attended") is not None
        for ids_L, seen_L, begin in zip(batch["ids"], batch["attended"], begins, strict=True)
    ]
    pad = getattr(loop.tokenizer, "pad_token_id", None)
    behind = sum(1 for token, seen in before if not seen and token == pad)
    if not behind or getattr(loop.tokenizer, "padding_side", None) != "right":
        return None
    found = departs(
        "prompts",
        f"{PADDED} padding: {behind} of {len(before)} completions follow hidden padding, and the "
        "tokenizer pads on the right.",
        fix='Pad prompts on the left: `tokenizer.padding_side = "left"`.',
    )
    headline = "Your sampler continues from padding, not from the prompt."
    return replace(found, direct=True, explains=("H09", "H15"), headline=headline)


def _says_what_was_written(played: Played) -> bool:
    """Whether the batch itself marks the tokens of the model, and who trains others is the loss."""
    return torch.equal(played.inputs["tool_mask"], played.inputs["completion_mask"])


def _beside_the_mask(batch: Batch, tokens: int) -> Iterator[Specified]:
    """What a batch holds that no mask has made: it is not followed."""
    ids_BL = batch["ids"].detach().double().cpu()
    yield Specified("ids", ids_BL)
    yield Specified("completion ids", ids_BL[:, -tokens:])
    for name in ("rewards", "advantages"):
        yield Specified(name, batch[name].detach().double().cpu())


def _placed(
    follower: Follower, right: Sequence[Specified], wrong: Sequence[Value]
) -> tuple[Where, ...]:
    return _shown(Trail(follower.events, Right(right, LIMIT.weight)).ranked(wrong))


def _shown(events: Iterable[Event]) -> tuple[Where, ...]:
    places = [place_of(event.statement, event.function) for event in events]
    return tuple(dict.fromkeys(places))[:SHOWN]


def _row_by_row(events: Sequence[Event], rows: int) -> Iterator[Event]:
    """Statements of the functions that are called once for every row: what is paid comes of
    them."""
    calls = Counter(function for function, _ in {(one.function, one.frame) for one in events})
    return (one for one in events if calls[one.function] == min(rows, MOST_TIMES))


def _followed(
    loop: Loop, asked: Asked, settings: Mapping[str, Any], batch: Batch, follower: Follower
) -> tuple[Pass, list[Value | None]]:
    """The loss of one batch, statement by statement: the pass, and what came out."""
    given, leaf_BT = _apart(loop, asked, settings, batch)
    follower.copies.leaf = leaf_BT
    with follower.following():
        loss = loop.loss(given, leaf_BT)
    wrong = [follower.copies.of(loss)]
    return Pass(_rows(batch), _inputs(given), float(loss.detach()), leaf_BT.detach()), wrong


def _passes(
    loop: Loop,
    asked: Asked,
    settings: Mapping[str, Any],
    batches: Sequence[Batch],
    ways: "_Ways | None" = None,
) -> list[Pass]:
    passes = []
    for batch in batches:
        given, leaf_BT = _apart(loop, asked, settings, batch, ways)
        loss = loop.loss(given, leaf_BT)
        weight_BT = torch.zeros_like(leaf_BT)
        if loss.requires_grad:  # a batch without any advantage may have none
            weight_BT = torch.autograd.grad(loss, leaf_BT, allow_unused=True)[0]
        if weight_BT is None:
            raise NotSpecified("a loss that does not come from the log-probs that it is given")
        one = Pass(_rows(batch), _inputs(given), float(loss.detach()), leaf_BT.detach())
        one.weight_BT = weight_BT
        passes.append(one)
    return passes


def _loss_of(
    loop: Loop, asked: Asked, settings: Mapping[str, Any], batches: Sequence[Batch]
) -> StageFound:
    """The loss, with log-probs that have gone known ways. One that is off by the same number
    wherever they are has the specified gradient everywhere, and trains the same."""
    passes = _passes(loop, asked, settings, batches)
    found = _judged(asked, passes)
    if not found.departs or not found.added:
        return found
    points = [passes, *(_passes(loop, asked, settings, batches, ways) for ways in OTHER_WAYS)]
    for one in (asked, replace(asked, passes=1, passes_in_generation=1)):
        first, *others = (off_by(one, point, _tokens(point), LIMIT) for point in points)
        if first is not None and all(_alike(first, each) for each in others):
            text = f"The loss is off by a constant, {first[0]:.4g}, whatever the log-probs are: "
            return replace(found, departs=None, text=f"{text}{LOGGED_ALONE}")
    return found


def _alike(one: Sequence[float], other: Sequence[float] | None) -> bool:
    pairs = [] if other is None else list(zip(one, other, strict=True))
    return bool(pairs) and all(math.isclose(a, b, rel_tol=CONSTANT) for a, b in pairs)


def _tokens(passes: Sequence[Pass]) -> int:
    return sum(int(trained(one.inputs).sum()) for one in passes)


def _judged(asked: Asked, passes: Sequence[Pass]) -> StageFound:
    """Whether the passes of a step are summed or averaged is not said: either is right."""
    found = judge_loss(asked, passes, _tokens(passes), LIMIT)
    if found.departs and len(passes) > 1:
        summed = replace(asked, passes=1, passes_in_generation=1)
        each = [judge_loss(summed, [one], _tokens([one]), LIMIT) for one in passes]
        wrong = [one for one in each if one.departs]
        if not wrong:
            return same("loss", "Each token has its specified weight in the loss of its pass.")
        if all(one.added for one in wrong):
            return wrong[0]
    return found


def _apart(
    loop: Loop,
    asked: Asked,
    settings: Mapping[str, Any],
    batch: Batch,
    how: "_Ways | None" = None,
) -> tuple[Batch, Tensor]:
    """The batch with a policy that has left its past and its reference, and its log-probs."""
    with torch.no_grad():
        new_BT = loop.scored(batch).detach().float().cpu()
    how = how or _Ways()
    given, draw = dict(batch), torch.Generator().manual_seed(how.seed)
    if asked.loss == "dr_grpo" and not settings.get("max_completion_length"):
        raise NotSpecified("loss_type 'dr_grpo' without `max_completion_length`")
    if _as_wide(batch.get("old"), new_BT):
        if settings.get("epsilon") is None:
            raise NotSpecified("a clip without `epsilon`")
        size = (len(new_BT), 1 if asked.level.startswith("sequence") else new_BT.shape[1])
        ways = torch.tensor(ways_apart(asked, LIMIT))
        drawn_BT = ways[torch.randint(len(ways), size, generator=draw)].expand_as(new_BT)
        drawn_BT = drawn_BT * how.far
        given["old"] = (new_BT - drawn_BT).to(batch["old"])
    if asked.beta:
        if not _as_wide(batch.get("reference"), new_BT):
            raise NotSpecified("a KL without `reference` in the batch")
        sides_BT = torch.randint(2, new_BT.shape, generator=draw) * 2 - 1
        given["reference"] = (new_BT + how.reference * sides_BT).to(batch["reference"])
    return given, new_BT.to(batch["ids"].device).requires_grad_()


def _as_wide(value: Any, logps_BT: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == logps_BT.shape


def _inputs(batch: Batch) -> Inputs:
    """A batch by TRL's names, from the second token on: the first has no log-prob."""
    named = {"old": "old_per_token_logps", "reference": "ref_per_token_logps"}
    shape = batch["ids"][:, 1:].shape
    kept = {
        name: batch[own]
        for own, name in named.items()
        if _as_wide(batch.get(own), torch.empty(shape))
    }
    return {
        **kept,
        "completion_mask": batch["trained"][:, 1:].bool(),
        "advantages": batch["advantages"].detach().float(),
    }


def _rows(batch: Batch) -> list[int]:
    return list(range(len(batch["ids"])))


def _arrived(batches: Sequence[Batch]) -> Tensor:
    return _all(batches, "rewards").double()[:, None]


def _all(batches: Sequence[Batch], name: str) -> Tensor:
    return torch.cat([batch[name].detach().float().cpu() for batch in batches])
