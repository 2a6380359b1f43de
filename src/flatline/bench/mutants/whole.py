"""The whole training of a script with another seed, and how good the policy is that comes out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatline.live.hooks import Patch

PROBLEMS = 64
"""Rows of the training data on which a policy is scored."""
AT_ONCE = 32
"""Rows that are sampled together, each as often as a group is large."""
SCORING_SEED = 1234


def trained_whole(
    trainer: Any, seed: int, trace: Path | None, weights: dict[str, Any]
) -> dict[str, Any]:
    """Train as the script asks, from another seed. What was trained goes into `weights`."""
    from transformers import set_seed

    import flatline

    trainer.args.seed += seed
    set_seed(trainer.args.seed)
    attached = flatline.attach(trainer, trace) if trace else None
    trainer.train()
    if attached:
        attached.detach()
    weights.update(
        (name, one.detach().clone())
        for name, one in trainer.accelerator.unwrap_model(trainer.model).named_parameters()
        if one.requires_grad
    )
    return {"steps": trainer.state.global_step}


def scored(trainer: Any, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The mean reward of these weights in a trainer that was not changed."""
    import torch
    from transformers import set_seed

    own = {name: one for name, one in trainer.model.named_parameters() if one.requires_grad}
    if set(own) != set(weights):
        return {"unscored": "other weights were trained than the unchanged script trains"}
    with torch.no_grad():
        for name, one in own.items():
            one.copy_(weights[name])
    if not all(bool(torch.isfinite(one).all()) for one in own.values()):
        return {"error": "the trained weights are not finite"}
    trainer.model.eval()
    set_seed(SCORING_SEED)
    paid = _listening(trainer)
    rows = [trainer.train_dataset[k] for k in range(min(PROBLEMS, len(trainer.train_dataset)))]
    for begin in range(0, len(rows), AT_ONCE):
        group = trainer.num_generations
        some = [dict(row) for row in rows[begin : begin + AT_ONCE] for _ in range(group)]
        with torch.no_grad():
            trainer._generate_and_score_completions(some)
    rewards_BF = torch.cat(paid)
    total_B = (rewards_BF * trainer.reward_weights.to(rewards_BF)).nansum(dim=1)
    return {"reward": round(float(total_B.mean()), 5)}


def _listening(trainer: Any) -> list[Any]:
    """What the reward functions pay from now on."""
    paid: list[Any] = []

    def listening(calculate: Any, *args: Any, **kwargs: Any) -> Any:
        paid.append(calculate(*args, **kwargs))
        return paid[-1]

    Patch(trainer, "_calculate_rewards", listening)
    return paid
