"""The loss of a pass: each token's weight in it beside the specified one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flatline.live.inputs import Inputs
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.spec import Asked
from flatline.spec.loss import bonus, of_no_token, shares
from flatline.spec.numerics import Tolerance
from flatline.spec.ratio import correction, highest_entropy, token_loss

OLD = "old_logps"
"""RLOO's name for the old log-prob of each completion."""
CORRECTION = "importance_sampling_ratio"
"""TRL's name for what a pass is told to weight its tokens with."""
CORRECTED = 1e-3
"""Of such a weight, relative to 1 plus its size: an exponential of what both sides are given."""
BEYOND = 0.3
"""How far beyond a bound of the clip a ratio is put, in nats: more than bf16 rounds a log-prob."""
MARGIN = 0.4
"""How far inside a bound, as a share of it."""


@dataclass(slots=True)
class Pass:
    """One call of the loss."""

    rows: list[int]
    inputs: Inputs
    loss: float
    logps_BT: Tensor | None = None
    """As the scorer gave them to the loss; None where it was not asked once."""
    entropy_BT: Tensor | None = None
    weight_BT: Tensor | None = None
    """Derivative of the loss by each of them."""


def ways_apart(asked: Asked, limit: Tolerance) -> list[float]:
    """Log-ratios far from every bound of the clip: above, below and, where rounding leaves room,
    between."""
    highest = max(1 + asked.clip_high, 1.0 if asked.ceiling is None else asked.ceiling)
    low = math.log(max(1e-3, 1 - asked.clip_low))
    between = [(1 - MARGIN) * math.log1p(asked.clip_high), (1 - MARGIN) * low]
    room = MARGIN * min(math.log1p(asked.clip_high), -low) > 10 * limit.logprob
    return [math.log(highest) + BEYOND, low - BEYOND, *(between if room else [])]


def trained(inputs: Inputs) -> Tensor:
    """Which tokens of a batch carry a loss."""
    mask_BT: Tensor = inputs["completion_mask"].bool()
    return mask_BT & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask_BT


def apart_by(way: float, new_T: Tensor, mask_T: Tensor) -> Tensor:
    """Old log-probs of a row from which its trained tokens together have gone `way` nats."""
    mask_T = mask_T.to(new_T.device)
    return new_T - way / mask_T.sum().clamp(min=1) * mask_T


def old_tokens(inputs: Inputs, logps_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
    """The old log-probs that a pass was given, token by token: as they are, or such that they add
    up to the one of the completion; None where it was given none."""
    if OLD not in inputs:
        old_BT: Tensor | None = inputs.get("old_per_token_logps")
        return old_BT
    ways_B = (logps_BT * mask_BT).sum(1) - inputs[OLD]
    rows = zip(ways_B, logps_BT, mask_BT, strict=True)
    return torch.stack([apart_by(float(way), new_T, mask_T) for way, new_T, mask_T in rows])


def log_ratio(asked: Asked, inputs: Inputs, logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """How far the policy has gone from where it sampled: each token, or the product of all."""
    old_BT = old_tokens(inputs, logps_BT, mask_BT)
    if old_BT is None:
        return torch.zeros_like(logps_BT)
    log_BT = logps_BT - old_BT
    whole = asked.level == "product"
    return (log_BT * mask_BT).sum(1, keepdim=True).expand_as(log_BT) if whole else log_BT


def judge_correction(asked: Asked, inputs: Inputs) -> StageFound | None:
    """The weights for the engine that sampled, of the log-probs that the trainer itself took and
    was told; None where they are as asked, or none were asked for."""
    sampled_BT, old_BT = inputs.get("sampling_per_token_logps"), inputs.get("old_per_token_logps")
    if asked.correction is None or sampled_BT is None or old_BT is None:
        return None
    mask_BT = trained(inputs)
    each = zip(old_BT, sampled_BT, mask_BT, strict=True)
    right_BT = torch.stack([correction(asked, *row) for row in each])
    found_BT = inputs[CORRECTION].expand_as(right_BT)
    off_BT = ((found_BT - right_BT).abs() / right_BT.clamp(min=1)) * mask_BT
    if float(off_BT.max()) <= CORRECTED:
        return None
    row, at = divmod(int(off_BT.argmax()), off_BT.shape[1])
    return departs(
        "ratio and KL",
        f"Tokens are not weighted for the engine that sampled them as "
        f"{asked.correction[0]!r} asks.",
        f"row {row}, token {at}: {float(right_BT[row, at]):.4g} was expected, "
        f"{float(found_BT[row, at]):.4g} was found",
        measured=float(off_BT.max()),
        limit=CORRECTED,
    )


def judge_loss(asked: Asked, passes: Sequence[Pass], tokens: int, limit: Tolerance) -> StageFound:
    """Each token's weight in the loss, and the loss, of the values that the pass itself was given.
    Returns a finding of `ratio and KL` or of `loss`: where tokens of one row are out of proportion,
    or another ratio or KL would give what was found, it is the former, else the latter."""
    if any(one.weight_BT is None for one in passes):
        return unknown("loss", "The loss does not go through TRL's log-probs.")
    expected = [_specified(asked, one, tokens) for one in passes]
    weight, value = _off(passes, expected)
    if weight <= limit.weight and value <= limit.loss:
        text = f"Each token has its specified weight in the loss, to {weight:.1g} of the largest."
        return same("loss", text, weight, limit.weight)
    stage, instead = _instead(asked, passes, tokens, limit)
    if weight <= limit.weight:
        judged = departs(
            stage or "loss",
            f"The loss of a pass is {passes[0].loss:.6g}, {expected[0].loss:.6g} was expected, "
            f"though each token has the right weight.{instead}",
            measured=value,
            limit=limit.loss,
        )
        return replace(judged, added=not stage)
    in_rows = "loss" if _in_proportion(passes, expected, limit) else "ratio and KL"
    return departs(
        stage or in_rows,
        f"The loss does not weigh tokens as asked: off by up to {weight:.2g} of the largest weight."
        f"{_beside(passes)}{instead}",
        _token_example(asked, passes, expected),
        measured=weight,
        limit=limit.weight,
    )


def off_by(
    asked: Asked, passes: Sequence[Pass], tokens: int, limit: Tolerance
) -> list[float] | None:
    """By how much each pass's loss is another; None where a token's weight is another as well."""
    expected = [_specified(asked, one, tokens) for one in passes]
    if _off(passes, expected)[0] > limit.weight:
        return None
    pairs = zip(passes, expected, strict=True)
    return [one.loss - right.loss for one, right in pairs]


def worst_pass(asked: Asked, passes: Sequence[Pass], tokens: int) -> int:
    """Which pass is furthest from the specified one; the first where none can be determined."""
    if any(one.weight_BT is None for one in passes):
        return 0
    off = [_off([one], [_specified(asked, one, tokens)]) for one in passes]
    return max(range(len(passes)), key=off.__getitem__)


def both_stages(judged: StageFound, owner: str = "") -> dict[str, StageFound]:
    """One look at the loss for two stages: the first of them that departs is reported. What the
    owner of a loss adds to the specified one may be a wish."""
    if judged.stage == "ratio and KL":
        later = unknown("loss", "Could not be tested: ratio or KL differ.")
        return {"ratio and KL": judged, "loss": later}
    earlier = replace(judged, stage="ratio and KL")
    if judged.departs or judged.added:
        text = "The tokens of each row stand in the specified proportion."
        earlier = same("ratio and KL", text)
    if judged.added and owner:
        judged = replace(judged, departs=None, text=f"{judged.text} {owner} adds a term to it.")
    return {"ratio and KL": earlier, "loss": judged}


@dataclass(frozen=True, slots=True)
class _Right:
    """What a pass must be."""

    weight_BT: Tensor
    loss: float
    size: float
    """Sum of its token losses without their signs."""


def _specified(asked: Asked, one: Pass, tokens: int, own_old: bool = False) -> _Right:
    """By the specification, from the values that the pass was given."""
    assert one.logps_BT is not None
    leaf_BT = one.logps_BT.detach().clone().requires_grad_()
    loss, size = specified_loss(asked, one.inputs, leaf_BT, one.entropy_BT, tokens, own_old)
    loss.backward()  # type: ignore[no-untyped-call]
    assert leaf_BT.grad is not None
    return _Right(leaf_BT.grad, float(loss.detach()), size)


def specified_loss(
    asked: Asked,
    inputs: Inputs,
    leaf_BT: Tensor,
    entropy_BT: Tensor | None,
    tokens: int,
    own_old: bool = False,
) -> tuple[Tensor, float]:
    """The loss of a pass as a function of its log-probs, and the sum of its token losses without
    their signs. `tokens` are those of the generation that carry a loss; with `own_old` the old
    log-probs are the pass's own."""
    mask_BT = trained(inputs)
    old_BT = old_tokens(inputs, leaf_BT.detach(), mask_BT)
    old_BT = leaf_BT.detach() if old_BT is None or own_old else old_BT
    reference_BT = inputs.get("ref_per_token_logps")
    chosen = [None] * len(mask_BT)
    if asked.entropy_share < 1 and entropy_BT is not None:
        entropies = list(entropy_BT.detach())
        chosen = highest_entropy(asked, entropies, list(mask_BT))  # type: ignore[assignment]
    share = shares(asked, mask_BT.sum(1).tolist(), tokens)
    loss, size = leaf_BT.new_zeros(()), 0.0
    if asked.entropy_bonus and entropy_BT is not None:
        counts = mask_BT if chosen[0] is None else torch.stack(chosen)
        loss = loss - bonus(asked, entropy_BT.detach()[counts], int(counts.sum()))
    for k, mask_T in enumerate(mask_BT):
        loss_T = token_loss(
            asked,
            new_T=leaf_BT[k],
            old_T=old_BT[k],
            reference_T=None if reference_BT is None else reference_BT[k],
            mask_T=mask_T,
            advantage=inputs["advantages"][k],
            chosen_T=chosen[k],
            corrected_T=inputs[CORRECTION][k] if CORRECTION in inputs else None,
        )
        kept_T = torch.where(mask_T, loss_T, torch.zeros_like(loss_T))
        if not mask_T.any():
            loss = loss + share[k] * of_no_token(asked, float(inputs["advantages"][k].mean()))
        loss = loss + share[k] * kept_T.sum()
        size += share[k] * float(kept_T.detach().abs().sum())
    return loss, size


def _off(passes: Sequence[Pass], expected: Sequence[_Right]) -> tuple[float, float]:
    """Largest differences: of a token's weight, relative to the largest that is expected, and of a
    pass's loss, relative to its token losses without their signs."""
    top = max((float(right.weight_BT.abs().max()) for right in expected), default=0.0)
    weight = value = 0.0
    for one, right in zip(passes, expected, strict=True):
        assert one.weight_BT is not None
        weight = max(weight, _number((one.weight_BT - right.weight_BT).abs().max()))
        value = max(value, _number(abs(one.loss - right.loss) / max(right.size, 1e-12)))
    return weight / max(top, 1e-12), value


def _number(distance: Tensor | float) -> float:
    """What is no number is infinitely far from one."""
    return float(distance) if math.isfinite(distance) else math.inf


def _in_proportion(passes: Sequence[Pass], expected: Sequence[_Right], limit: Tolerance) -> bool:
    """Whether every row is a multiple of the row that was expected, in the tokens that carry a
    loss: of the others there is no ratio, and whether they count is a matter of the sum."""
    top = max(float(right.weight_BT.abs().max()) for right in expected)
    for one, right in zip(passes, expected, strict=True):
        assert one.weight_BT is not None
        found_BT = one.weight_BT * trained(one.inputs)
        for a_T, b_T in zip(found_BT.double(), right.weight_BT.double(), strict=True):
            own = float(b_T @ b_T)
            times = float(a_T @ b_T) / own if own else 0.0
            left = _number((a_T - times * b_T).abs().max())
            if left > limit.weight * top * max(1.0, abs(times)):
                return False
    return True


def _beside(passes: Sequence[Pass]) -> str:
    """How much of the loss is on tokens that carry none, in words; empty for nothing."""
    known = [(one.weight_BT.abs(), one.inputs) for one in passes if one.weight_BT is not None]
    total = sum(float(weight_BT.sum()) for weight_BT, _ in known)
    beside = sum(float((weight_BT * ~trained(inputs)).sum()) for weight_BT, inputs in known)
    return f" {beside / total:.0%} of it is on tokens that carry no loss." if beside else ""


def _instead(
    asked: Asked, passes: Sequence[Pass], tokens: int, limit: Tolerance
) -> tuple[str, str]:
    """What else, had it been asked for, would give what was found: its stage and words; both empty
    where nothing does."""
    swapped = replace(asked, clip_low=asked.clip_high, clip_high=asked.clip_low)
    others = {
        "without the KL": ("ratio and KL", replace(asked, beta=0.0), False),
        "with a KL of the wrong sign": ("ratio and KL", replace(asked, beta=-asked.beta), False),
        "with every ratio 1": ("ratio and KL", asked, True),
        "with the two clip bounds exchanged": ("ratio and KL", swapped, False),
        "with the ratio of the mean token": (
            "ratio and KL",
            replace(asked, level="sequence"),
            False,
        ),
    }
    for loss in ("grpo", "dr_grpo", "bnpo", "dapo"):
        others[f"with loss_type {loss!r}"] = ("loss", replace(asked, loss=loss), False)
    for words, (stage, changed, own_old) in others.items():
        right = [_specified(changed, one, tokens, own_old) for one in passes]
        weight, value = _off(passes, right)
        if weight <= limit.weight and value <= limit.loss:
            return stage, f" It is what would come {words}."
    turned = [_specified(asked, one, tokens) for one in passes]
    weight, _ = _off(passes, [replace(one, weight_BT=-one.weight_BT) for one in turned])
    if weight <= limit.weight:
        return "loss", " It has the wrong sign: what was rewarded becomes less likely."
    return "", ""


def _token_example(asked: Asked, passes: Sequence[Pass], expected: Sequence[_Right]) -> str:
    places = []
    for one, right in zip(passes, expected, strict=True):
        assert one.weight_BT is not None
        off_BT = (one.weight_BT - right.weight_BT).abs()
        at = int(off_BT.argmax())
        k, t = divmod(at, off_BT.shape[1])
        places.append((float(off_BT.max()), one, right, k, t))
    _, one, right, k, t = max(places, key=lambda place: place[0])
    assert one.weight_BT is not None and one.logps_BT is not None
    ratio = float(log_ratio(asked, one.inputs, one.logps_BT, trained(one.inputs))[k, t].exp())
    advantage = float(one.inputs["advantages"][k].flatten()[0])
    return (
        f"row {one.rows[k]}, token {t}: advantage {advantage:.3f}, ratio {ratio:.3f}; the loss "
        f"changes by {float(right.weight_BT[k, t]):.4g} per nat of its log-prob if as asked, by "
        f"{float(one.weight_BT[k, t]):.4g} as found"
    )
