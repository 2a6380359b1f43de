"""Which experts a mixture-of-experts model chose: those that the sampler says, against the
trainer's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flatline.live.inputs import select, trimmed
from flatline.live.measure.played import Played, fixed_logps
from flatline.live.protocol import Trainer
from flatline.live.records import Bools, Floats, Routing

ROUTED = "routed_experts"
"""What a sampler calls the experts of each token and layer (vLLM, SGLang, verl, NeMo-RL)."""
ROUTERS = ("gate", "router")
"""What the part that chooses is called, beside the `experts`."""
ROLLOUTS = 8
"""Rollouts that are looked at."""


def routers_of(model: nn.Module) -> list[nn.Module]:
    """The part of each layer that chooses, in the order of the layers."""
    found = []
    for layer in model.modules():
        if hasattr(layer, "experts"):
            found += [part for name, part in layer.named_children() if name in ROUTERS]
    return found


def routing(trainer: Trainer, played: Played) -> Routing | None:
    """Some rollouts, scored one at a time; None of a model without experts."""
    routers = routers_of(trainer.whole_model)
    if not routers:
        return None
    told = [
        i
        for i, row in enumerate(played.rows)
        if row.get(ROUTED) is not None and bool(played.trained_B[i])
    ]
    looked = [_of_rollout(trainer, played, routers, i) for i in told[:ROLLOUTS]]
    return Routing(
        layers=len(routers),
        differing_R=np.array([one.differing for one in looked]),
        gap_T=np.concatenate([one.gap_T for one in looked] or [np.empty(0)]),
        rerouted_T=np.concatenate([one.rerouted_T for one in looked] or [np.empty(0, dtype=bool)]),
    )


class _Looked(NamedTuple):
    """What one rollout shows."""

    differing: float
    """Share of the choices of all tokens and layers that differ."""
    gap_T: Floats
    """Of its trained tokens, trainer against sampler."""
    rerouted_T: Bools
    """Of these, whether some layer of the token in front of it went elsewhere."""


def _of_rollout(
    trainer: Trainer, played: Played, routers: list[nn.Module], rollout: int
) -> _Looked:
    inputs = trimmed(select(played.inputs, [rollout]))
    with listening(routers, trainer.whole_model.config) as chosen:
        logps_T = fixed_logps(trainer, inputs, 1)[0].double().cpu()
    ours = np.stack([one.cpu().numpy() for one in chosen], axis=1)
    theirs = np.asarray(played.rows[rollout][ROUTED]).reshape(-1, *ours.shape[1:])
    tokens = min(len(ours), len(theirs))  # no sampler reads the last token that it writes
    differ_N = (np.sort(ours[:tokens]) != np.sort(theirs[:tokens])).any(-1)
    width = len(logps_T)
    before = int((inputs["prompt_mask"] != 0).sum()) + np.arange(width) - 1
    gap_T = _gap(played.sampler_BT, rollout, logps_T)
    known = played.trained_BT[rollout, :width].numpy() & np.isfinite(gap_T) & (before < tokens)
    return _Looked(float(differ_N.mean()), gap_T[known], differ_N[before[known]].any(-1))


def _gap(sampler_BT: Tensor | None, rollout: int, logps_T: Tensor) -> Floats:
    """Of every token; NaN where the sampler gives no log-probs."""
    if sampler_BT is None:
        return np.full(len(logps_T), np.nan)
    sampled_T = sampler_BT[rollout, : len(logps_T)].double().cpu()
    return np.asarray((logps_T - sampled_T).abs().numpy())


@contextmanager
def listening(routers: list[nn.Module], config: Any) -> Iterator[list[Tensor]]:
    """Inside, every router tells the experts that it chooses."""
    chosen: list[Tensor] = []
    most = getattr(config, "num_experts_per_tok", 1)

    def heard(router: nn.Module, _: Any, output: Any) -> None:
        chosen.append(chosen_of(output, getattr(router, "top_k", most)))

    hooks = [router.register_forward_hook(heard) for router in routers]
    try:
        yield chosen
    finally:
        for hook in hooks:
            hook.remove()


def chosen_of(output: Any, most: int) -> Tensor:
    """Experts of each token: as the router names them, else those of its largest logits."""
    parts = output if isinstance(output, tuple) else (output,)
    named = [one for one in parts if isinstance(one, Tensor) and not one.is_floating_point()]
    found: Tensor = named[0] if named else torch.topk(parts[0], most, dim=-1).indices
    return found.reshape(-1, found.shape[-1])
