"""How far the policy has gone: from where it sampled (ratio, clip), and from where it began (KL).

    rho_t = pi(o_t) / pi_old(o_t)                               each token: PPO, GRPO
    rho   = (prod_t rho_t) ^ (1 / |o|)                          sequence: Zheng et al., 2025, GSPO
    rho_t = sg(rho) pi(o_t) / sg(pi(o_t)), rho the sequence's   sequence_token: GSPO-token
    rho   = prod_t rho_t                                        product: Ahmadian et al., 2024, RLOO
    policy loss = -min(rho A, clip(rho, 1 - low, 1 + high) A)   Shao et al., 2024; Yu et al., 2025
    policy loss = -(prod_t clip_A(rho_t)) ^ (1 / |o|) A         Zhao et al., 2025, GMPO
    policy loss = -sg(min(rho, high)) A log pi                  MiniMax, 2025, CISPO
    policy loss = -4 / tau sigmoid(tau (rho - 1)) A             Gao et al., 2025, SAPO
    policy loss = -sg(rho^k e^(lambda (1 - rho))) A log pi      VESPO (2602.10693): rho the product
    KL_t  = pi_ref / pi - log(pi_ref / pi) - 1                  Schulman, 2020, k3
    KL_t * rho_t                                                off policy: DeepSeek-V3.2, 2025
    KL    = sum_t log(pi_old / pi_ref)                          k1, where the reward has it: RLOO

sg: no gradient. clip_A: in logs and to one side only, high where A is above 0, else low. With
`delta` (INTELLECT-2, 2025) rho itself is never above it. With an entropy share (Wang et al., 2025)
the policy loss is that of the tokens with the highest entropy only; the KL stays that of all. With
a drift (DeepSeek-V3.2, 2025) completions of negative advantage that lie too far off have no policy
loss. Where another engine samples (Yao et al., 2025) each token's policy loss is weighted by
pi_old / pi_sampled, truncated, or 0 beyond its bounds.
"""

import torch
from torch import Tensor

from flatline.spec.asked import Asked, NotSpecified

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "rloo")
"""Losses with PPO's clip."""


def ratio(asked: Asked, new_T: Tensor, old_T: Tensor, mask_T: Tensor) -> Tensor:
    """Importance ratio of each token, or one for the sequence. GSPO-token has the sequence's ratio
    at every token, and the gradient of that token alone: advantages may then differ by token."""
    log_T = new_T - old_T
    if asked.level == "token":
        return torch.exp(log_T)
    mean = (log_T * mask_T).sum() / mask_T.sum().clamp(min=1)
    if asked.level == "sequence":
        return torch.exp(mean).expand_as(log_T)
    if asked.level == "sequence_token":
        return torch.exp(mean.detach() + new_T - new_T.detach())
    if asked.level == "product":
        return torch.exp((log_T * mask_T).sum()).expand_as(log_T)
    raise NotSpecified(f"an importance ratio of each {asked.level}")


def kl(asked: Asked, new_T: Tensor, reference_T: Tensor, ratio_T: Tensor) -> Tensor:
    """Distance from the reference, of each token."""
    log_T = reference_T - new_T
    kl_T = torch.exp(log_T) - log_T - 1
    return kl_T * ratio_T if asked.corrected_kl else kl_T


def distance(old_T: Tensor, reference_T: Tensor, mask_T: Tensor) -> Tensor:
    """Of a whole completion from the reference, as a reward has it."""
    return ((old_T - reference_T) * mask_T).sum()


def policy_loss(asked: Asked, new_T: Tensor, ratio_T: Tensor, advantage: Tensor) -> Tensor:
    """What each token adds, without the KL."""
    if asked.loss == "cispo":
        return -ratio_T.clamp(max=asked.clip_high).detach() * advantage * new_T
    if asked.loss == "sapo":
        return -soft_ratio(asked, ratio_T, advantage) * advantage
    if asked.loss == "vespo":
        return -gamma_weight(asked, ratio_T, advantage).detach() * advantage * new_T
    if asked.loss not in CLIPPED:
        raise NotSpecified(f"the loss {asked.loss!r}")
    clipped_T = ratio_T.clamp(1 - asked.clip_low, 1 + asked.clip_high)
    free_T = ratio_T if asked.ceiling is None else ratio_T.clamp(max=asked.ceiling)
    return -torch.min(free_T * advantage, clipped_T * advantage)


def soft_ratio(asked: Asked, ratio_T: Tensor, advantage: Tensor) -> Tensor:
    """SAPO: instead of a clip, a gate that has the ratio's slope at 1 and flattens on both sides;
    tau is another above 0 than below."""
    above, below = asked.softness
    tau = torch.where(advantage > 0, above, below).to(ratio_T)
    return torch.sigmoid(tau * (ratio_T - 1)) * 4 / tau


def gamma_weight(asked: Asked, ratio_T: Tensor, advantage: Tensor) -> Tensor:
    """VESPO: a gamma density of the ratio that is 1 where the ratio is."""
    (k_above, l_above), (k_below, l_below) = asked.gamma
    k = torch.where(advantage >= 0, k_above, k_below).to(ratio_T)
    rate = torch.where(advantage >= 0, l_above, l_below).to(ratio_T)
    return ratio_T**k * torch.exp(rate * (1 - ratio_T))


def near(asked: Asked, new_T: Tensor, old_T: Tensor, mask_T: Tensor, advantage: Tensor) -> Tensor:
    """Whether a completion is near enough to where it was sampled to carry a policy loss."""
    gone = ((old_T - new_T.detach()) * mask_T).sum() / mask_T.sum().clamp(min=1)
    return (advantage >= 0) | (gone <= (torch.inf if asked.drift is None else asked.drift))


def correction(asked: Asked, old_T: Tensor, sampled_T: Tensor, mask_T: Tensor) -> Tensor:
    """What each token's policy loss is weighted with where another engine has sampled it. A token
    of which that engine says nothing counts as if both agreed."""
    assert asked.correction is not None
    mode, least, most = asked.correction
    log_T = torch.nan_to_num(old_T - sampled_T, nan=0.0) * mask_T
    ratio_T = torch.exp(log_T.sum().expand_as(log_T) if mode.startswith("sequence") else log_T)
    bounds = (0.0 if least is None else least, torch.inf if most is None else most)
    if mode.endswith("truncate"):
        return ratio_T.clamp(*bounds)
    return torch.where((ratio_T < bounds[0]) | (ratio_T > bounds[1]), 0.0, ratio_T)


def geometric_loss(asked: Asked, log_T: Tensor, mask_T: Tensor, advantage: Tensor) -> Tensor:
    """GMPO: one for the whole completion, of the mean of its clipped log-ratios."""
    clipped_T = log_T.clamp(-asked.clip_low, asked.clip_high)
    side = torch.minimum if advantage > 0 else torch.maximum
    mean = (side(log_T, clipped_T) * mask_T).sum() / mask_T.sum().clamp(min=1)
    return (-torch.exp(mean) * advantage).expand_as(log_T)


def token_loss(
    asked: Asked,
    *,
    new_T: Tensor,
    old_T: Tensor,
    reference_T: Tensor | None,
    mask_T: Tensor,
    advantage: Tensor,
    chosen_T: Tensor | None = None,
    corrected_T: Tensor | None = None,
) -> Tensor:
    """What each token adds. `chosen_T` says which tokens the entropy share leaves, `corrected_T`
    how each is weighted for the engine that sampled it."""
    ratio_T = ratio(asked, new_T, old_T, mask_T)
    if asked.loss == "gmpo":
        kept_T = mask_T if chosen_T is None else mask_T & chosen_T
        loss_T = geometric_loss(asked, new_T - old_T, kept_T, advantage)
    else:
        loss_T = policy_loss(asked, new_T, ratio_T, advantage)
        loss_T = loss_T if chosen_T is None else loss_T * chosen_T
        loss_T = loss_T * near(asked, new_T, old_T, mask_T, advantage)
        loss_T = loss_T if corrected_T is None else loss_T * corrected_T
    if asked.beta and asked.kl_place == "loss" and reference_T is not None:
        own_T = torch.exp(new_T - old_T) if asked.loss == "vespo" else ratio_T
        loss_T = loss_T + asked.beta * kl(asked, new_T, reference_T, own_T)
    return loss_T


def highest_entropy(asked: Asked, entropies: list[Tensor], masks: list[Tensor]) -> list[Tensor]:
    """Which tokens of a pass the entropy share leaves, row by row."""
    trained = torch.cat([e[m] for e, m in zip(entropies, masks, strict=True)]).float()
    if not trained.numel():
        return masks
    least = torch.quantile(trained, 1 - asked.entropy_share)
    return [(e >= least) & m for e, m in zip(entropies, masks, strict=True)]
