"""Every value on the way from rewards to a loss that the specification can name."""

from collections.abc import Iterator

import torch
from torch import Tensor

from flatline.live.departure.loss import OLD, Pass, old_tokens, trained
from flatline.live.inputs import Inputs
from flatline.live.where.specified import Specified
from flatline.live.where.values import slope_of
from flatline.spec import Asked
from flatline.spec.advantages import TINY, advantages, leave_one_out, spread
from flatline.spec.loss import shares
from flatline.spec.ratio import gamma_weight, soft_ratio
from flatline.spec.rewards import penalised, total, weights


def of_advantages(asked: Asked, paid_BF: Tensor, kl_B: Tensor | None = None) -> Iterator[Specified]:
    """`kl_B` is each row's distance from the reference, where that is in the reward."""
    yield Specified("rewards", paid_BF)
    yield Specified("reward weights", torch.from_numpy(weights(asked, paid_BF.shape[1])))
    earned_B = torch.from_numpy(total(asked, paid_BF))
    yield Specified("reward", earned_B)
    reward_B = torch.from_numpy(penalised(asked, earned_B.numpy(), kl_B))
    if kl_B is not None and asked.beta:
        yield Specified("KL of each row", kl_B)
        yield Specified("KL in the reward", asked.beta * kl_B)
        yield Specified("reward in its range", reward_B + asked.beta * kl_B)
    reward_PG = reward_B.view(-1, asked.group)
    mean_P, spread_P = reward_PG.nanmean(1), torch.from_numpy(spread(reward_PG.numpy())).flatten()
    yield Specified("reward", reward_B)
    yield Specified("reward", reward_PG)
    if asked.baseline == "others":
        yield from _of_others(asked, reward_PG)
        yield Specified("advantages", torch.from_numpy(advantages(asked, paid_BF, kl_B)))
        return
    centred_B = (reward_PG - mean_P[:, None]).flatten()
    for name, each_P in (("mean", mean_P), ("spread", spread_P), ("spread", spread_P + TINY)):
        yield Specified(f"{name} of groups", each_P)
        yield Specified(f"{name} of groups", each_P.repeat_interleave(asked.group))
    batch = torch.from_numpy(spread(reward_B[None].numpy())).flatten()
    yield Specified("spread of the batch", batch)
    yield Specified("spread of the batch", batch.expand_as(reward_B))
    yield Specified("centred rewards", centred_B)
    yield Specified("centred rewards", centred_B.view(-1, asked.group))
    yield Specified("advantages", torch.from_numpy(advantages(asked, paid_BF, kl_B)))


def _of_others(asked: Asked, reward_PG: Tensor) -> Iterator[Specified]:
    """The means of the others of a group, what they are made of, and what is left beside them."""
    known_P = (~reward_PG.isnan()).sum(1).double()
    sum_P = reward_PG.nansum(1)
    left_PG = torch.from_numpy(leave_one_out(reward_PG.numpy()))
    mean = left_PG.nanmean()
    size = torch.from_numpy(spread((left_PG - mean).reshape(1, -1).numpy()))
    if asked.scale == "advantages":
        yield Specified("mean of all", mean)
        yield Specified("spread of all", size)
        yield Specified("spread of all", size + TINY)
        yield Specified("off the mean of all", (left_PG - mean).flatten())
    yield Specified("rewards of groups that are known", known_P)
    yield Specified("sum of groups", sum_P)
    each = {
        "sum of the others": sum_P[:, None] - reward_PG,
        "mean of the others": reward_PG - left_PG,
        "centred rewards": left_PG,
    }
    for name, one_PG in each.items():
        yield Specified(name, one_PG)
        yield Specified(name, one_PG.flatten())


def of_pass(asked: Asked, one: Pass, generation: Inputs) -> Iterator[Specified]:
    """From the log-probs to the loss, of what the pass was given of its generation."""
    inputs = one.inputs
    assert one.logps_BT is not None
    mask_BT = trained(inputs).double().cpu()
    leaf_BT = one.logps_BT.detach().double().cpu().requires_grad_()

    def told(name: str, value: Tensor, mask: Tensor | None = mask_BT) -> Specified:
        slope = slope_of(value, leaf_BT) if value.requires_grad else None
        mask = mask if value.shape == mask_BT.shape else None
        return Specified(name, value.detach(), mask, slope)

    yield from of_inputs(generation, one, mask_BT)
    yield told("log-probs", leaf_BT * 1.0)
    yield told("log-prob of each row", (leaf_BT * mask_BT).sum(1))
    given_BT = old_tokens(inputs, one.logps_BT.detach(), trained(inputs))
    old_BT = leaf_BT.detach() if given_BT is None else given_BT.double().cpu()
    yield Specified("old log-probs", old_BT, mask_BT, torch.zeros_like(old_BT))
    way_BT = leaf_BT - old_BT
    if OLD not in inputs:  # nobody has any of single tokens
        yield told("log-ratio", way_BT)
    if asked.level in ("sequence", "sequence_token"):
        way_BT = ((way_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1))[:, None]
        yield told("log-ratio", way_BT[:, 0])
    if asked.level == "sequence_token":
        way_BT = way_BT.detach() + leaf_BT - leaf_BT.detach()
        yield told("log-ratio", way_BT)
    if asked.level == "product":
        way_BT = (way_BT * mask_BT).sum(1, keepdim=True)
        yield told("log-ratio", way_BT)
    ratio_BT = way_BT.exp()
    yield told("ratio", ratio_BT)
    advantage_B1 = inputs["advantages"].double().cpu()
    advantage_B1 = advantage_B1[:, None] if advantage_B1.dim() == 1 else advantage_B1
    terms = _policy_terms(asked, leaf_BT, ratio_BT, advantage_B1)
    yield from (told(name, value) for name, value in terms)
    loss_BT = terms[-1][1]
    reference_BT = inputs.get("ref_per_token_logps")
    if asked.beta and reference_BT is not None:
        back_BT = reference_BT.double().cpu() - leaf_BT
        kl_BT = back_BT.exp() - back_BT - 1
        yield told("KL", kl_BT)
        if asked.corrected_kl:
            kl_BT = kl_BT * ((leaf_BT - old_BT).exp() if asked.loss == "vespo" else ratio_BT)
            yield told("corrected KL", kl_BT)
        yield told("KL in the loss", asked.beta * kl_BT)
        loss_BT = loss_BT + asked.beta * kl_BT
    loss_BT = loss_BT.expand_as(mask_BT)
    yield told("token loss", loss_BT)
    tokens = int(trained(generation).sum())
    share_B = torch.tensor(shares(asked, mask_BT.sum(1).int().tolist(), tokens)).double()
    kept_BT = torch.where(mask_BT.bool(), loss_BT, 0.0)
    whole = (share_B * kept_BT.sum(1)).sum()
    yield told("token loss where it counts", kept_BT, None)
    yield told("loss of each row", kept_BT.sum(1))
    yield told("loss", whole)
    yield told("loss before it is shared by passes", whole * asked.passes)


def of_inputs(generation: Inputs, one: Pass, mask_BT: Tensor) -> Iterator[Specified]:
    """What the pass was handed; the rows that it was dealt, by their numbers."""
    for name, value in one.inputs.items():
        if not isinstance(value, Tensor):
            continue
        given = generation.get(name)
        dealt = given[one.rows] if isinstance(given, Tensor) and given.dim() else given
        right = value if dealt is None else dealt
        slope = torch.zeros_like(mask_BT) if right.is_floating_point() else None
        yield Specified(name, right.detach().double().cpu(), slope=slope)
    yield Specified("loss mask", mask_BT)
    yield Specified("tokens of each row", mask_BT.sum(1))
    pairs = (("prompt_ids", "completion_ids"), ("prompt_mask", "completion_mask"))
    for front, back in pairs if "prompt_ids" in one.inputs else ():
        both = [one.inputs[front].double().cpu(), one.inputs[back].double().cpu()]
        yield Specified("rows", torch.cat(both, 1))
    if "prompt_ids" in one.inputs:
        yield from _labels(one.inputs)


def _labels(inputs: Inputs) -> Iterator[Specified]:
    """What is scored, as a model is told it: -100 where nothing is; then without the first."""
    seen_BL = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1).bool().cpu()
    ids_BL = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1).double().cpu()
    every_BL = ids_BL.masked_fill(~seen_BL, -100)
    scored_BL = every_BL.clone()
    scored_BL[:, : inputs["prompt_ids"].shape[1]] = -100
    for labels_BL in (every_BL, scored_BL):
        yield Specified("labels", labels_BL)
        yield Specified("labels", labels_BL[:, 1:])


def _policy_terms(
    asked: Asked, leaf_BT: Tensor, ratio_BT: Tensor, advantage_B1: Tensor
) -> list[tuple[str, Tensor]]:
    """What the policy's loss is made of, by name; itself last."""
    if asked.loss == "cispo":
        kept_BT = ratio_BT.clamp(max=asked.clip_high).detach()
        return [("clipped ratio", kept_BT), ("policy loss", -kept_BT * advantage_B1 * leaf_BT)]
    if asked.loss == "sapo":
        soft_BT = soft_ratio(asked, ratio_BT, advantage_B1)
        return [("soft ratio", soft_BT), ("policy loss", -soft_BT * advantage_B1)]
    if asked.loss == "vespo":
        kept_BT = gamma_weight(asked, ratio_BT, advantage_B1).detach()
        return [("gamma weight", kept_BT), ("policy loss", -kept_BT * advantage_B1 * leaf_BT)]
    kept_BT = ratio_BT.clamp(1 - asked.clip_low, 1 + asked.clip_high)
    free_BT = ratio_BT if asked.ceiling is None else ratio_BT.clamp(max=asked.ceiling)
    free_loss_BT, kept_loss_BT = free_BT * advantage_B1, kept_BT * advantage_B1
    return [
        ("clipped ratio", kept_BT),
        ("ratio below the ceiling", free_BT),
        ("free loss", free_loss_BT),
        ("clipped loss", kept_loss_BT),
        ("policy gain", torch.min(free_loss_BT, kept_loss_BT)),
        ("policy loss", -torch.min(free_loss_BT, kept_loss_BT)),
    ]
